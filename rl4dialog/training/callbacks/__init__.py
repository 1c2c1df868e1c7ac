"""Callbacks of stable-baselines3 that act between the iterations of a run."""
