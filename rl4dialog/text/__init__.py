"""Layer 1: tokenizers, prompt encoding, words, and the ends of replies. Does not import torch."""
