"""Layer 2: the token-level Markov decision process, its utterance view, partners and vectorization. No torch."""
