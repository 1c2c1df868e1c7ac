"""Rows of this feature in tables of tests about all components."""

FIRST = ["doctor"]
