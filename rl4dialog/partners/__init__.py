"""Layer 3: rule-based conversation partners, which run in the environment workers (no torch)."""
