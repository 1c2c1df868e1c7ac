"""Algorithms of stable-baselines3 and sb3-contrib, unchanged, in environments with plain gymnasium spaces."""
