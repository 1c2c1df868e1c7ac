"""Sweeps: one config with many values of some keys, each of which is trained in its own process."""
