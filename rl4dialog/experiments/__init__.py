"""Experiments of several runs, each in a separate process: seeds, sweeps, and reproductions."""
