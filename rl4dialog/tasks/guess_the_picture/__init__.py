"""Guess the picture: the agent asks about a hidden scene, and a guesser ranks all scenes by the answers."""
