"""Callbacks of stable-baselines3 around the iterations of a run."""
