"""Layer 4: reinforcement-learning algorithms. They do not depend on YAML, environments, rewards or metrics."""
