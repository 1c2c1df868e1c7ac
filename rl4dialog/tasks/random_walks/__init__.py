"""Shortest paths, to be learned from random walks on a graph."""
