"""Side-by-side timings of an iteration: this toolkit, and what else one could train with."""
