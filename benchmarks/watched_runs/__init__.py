"""Configs, plans and faults of the runs that measure the warnings."""
