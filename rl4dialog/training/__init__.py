"""Layer 5: runs, including their folders, records, training, evaluation and final summary."""
