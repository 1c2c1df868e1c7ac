"""Layer 1: pure tensor functions without state; every docstring gives the shapes.

Axes: B batch, T response tokens, V vocabulary, N agent tokens of a whole batch, E episodes, L tokens of an episode.
"""
