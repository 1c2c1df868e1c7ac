"""The folder that a run leaves: what is written into it, and what is read from it again."""
