"""Layer 2: the token-level Markov decision process, its utterance view, partners and vectorization.

No torch in what a worker process imports; stable-baselines3 stands on the main process' side alone."""
