"""Layer 2: text metrics, thin adapters over established libraries. Keys are those of RL4LMs."""
