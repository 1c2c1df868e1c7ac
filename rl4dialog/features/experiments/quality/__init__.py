"""Comparison of algorithms over seeds: many runs, one page."""
