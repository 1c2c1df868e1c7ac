"""Layer 2: the token-level Markov decision process, its utterance view and vectorization.

Worker processes do not import torch; only the main process imports stable-baselines3.
"""
