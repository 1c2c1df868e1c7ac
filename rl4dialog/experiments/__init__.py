"""Several runs, each in a process of its own: seeds, sweeps, and the same run once more."""
