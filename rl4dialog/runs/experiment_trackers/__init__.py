"""Experiment trackers of ``logging.outputs``: Weights & Biases, MLflow and trackio."""
