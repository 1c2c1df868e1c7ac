"""Trained models for others: GGUF files, and publishing on the Hugging Face Hub."""

from rl4dialog.core.features import Feature

FEATURE = Feature(
    "trained models for others: GGUF files, and publishing on the Hugging Face Hub",
    commands="rl4dialog.features.export.commands",
    moved={
        "rl4dialog.inference.gguf": "rl4dialog.features.export.gguf",
        "rl4dialog.inference.publishing": "rl4dialog.features.export.publishing",
    },
    page="exporting.md",
)
