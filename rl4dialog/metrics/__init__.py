"""Layer 2: text metrics, thin adapters over well-kept libraries. Keys are those of RL4LMs."""
