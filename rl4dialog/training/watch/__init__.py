"""Watching the logged values of a run for signs of trouble."""
