"""Supervised fine-tuning: complete runs and warm starts."""
