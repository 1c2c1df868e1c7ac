"""Runs whose policy takes whole actions in an environment with plain gymnasium spaces."""
