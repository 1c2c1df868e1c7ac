"""Learning from logged conversations."""
