"""Inference with a trained model: loading, generation, chat, evaluation and publishing, without training."""
