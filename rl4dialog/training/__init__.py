"""Layer 5: what a run consists of (its folder, its records, training, evaluation), and its summary at the end."""
