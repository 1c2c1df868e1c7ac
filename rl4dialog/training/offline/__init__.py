"""Runs that learn from logged conversations."""
