"""Supervised fine-tuning: runs of it, and warm starts."""
