"""From config to objects, and nowhere else: a module per thing that is built. What is built gets plain arguments."""
