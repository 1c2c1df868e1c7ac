"""Improvement of a run's model by feedback: reward model, corrections, PPO and comparison, stage by stage."""
