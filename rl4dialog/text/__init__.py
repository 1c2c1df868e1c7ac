"""Layer 1: tokenizers, prompt encoding, words, and where a reply ends. Imports no torch."""
