"""Layer 3: rollout collection, the sequence buffer, and KL control."""
