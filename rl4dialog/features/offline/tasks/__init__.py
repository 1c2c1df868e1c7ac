"""Tasks with logged rewards and exact scores."""
