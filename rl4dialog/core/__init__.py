"""Layer 0: shared types, contracts, errors, the registry and the config schema. Does not import torch."""
