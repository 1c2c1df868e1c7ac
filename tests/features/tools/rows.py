"""Rows of this feature in tables of tests about all components."""

HARMLESS_ARGUMENTS = ["ends_after", "tools"]
