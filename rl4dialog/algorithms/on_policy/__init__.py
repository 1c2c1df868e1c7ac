"""On-policy algorithms of stable-baselines3, on rollouts of whole replies."""
