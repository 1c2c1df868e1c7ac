"""Layer 1: pure tensor maths, shapes in every docstring, no state.

Axes: B batch, T response tokens, V vocabulary, N agent tokens of a whole batch, E episodes, L tokens of an episode.
"""
