"""What a run keeps in the cache."""

from __future__ import annotations

from rl4dialog.core.config import RunConfig
from rl4dialog.training.building.language_model import build_language_model
from rl4dialog.training.building.lengths import run_lengths
from rl4dialog.training.building.tokenizer import build_run_tokenizer
from rl4dialog.training.building.toolkit import build_toolkit


def fill_cache(config: RunConfig) -> None:
    """Do what a run keeps in the cache: the intent classifier, and the warm start."""
    tokenizer, data = build_run_tokenizer(config)
    build_toolkit(config, tokenizer, data)
    build_language_model(config, tokenizer, data, run_lengths(config, tokenizer, data))
