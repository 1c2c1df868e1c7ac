"""On-policy algorithms: stable-baselines3's, over rollouts of whole replies."""
