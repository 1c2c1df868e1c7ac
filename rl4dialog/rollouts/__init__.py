"""Layer 3: collecting rollouts, the sequence buffer, and control of the KL coefficient."""
