"""Examining a run before it begins: its texts, model, reward and machine."""
