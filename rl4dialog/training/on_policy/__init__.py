"""Runs that train the policy on its own replies."""
