"""Layer 1: tokenizers, prompt encoding, and where a reply ends. Imports no torch."""
