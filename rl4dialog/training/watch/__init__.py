"""Checks of a running run's logged values."""
