"""Talking to a trained model: in the terminal, on a page, and the feedback that people give there."""
