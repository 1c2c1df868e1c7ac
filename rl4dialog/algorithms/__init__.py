"""Layer 4: reinforcement-learning algorithms. They know nothing of YAML, environments, rewards or metrics."""
