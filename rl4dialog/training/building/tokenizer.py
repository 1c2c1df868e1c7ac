"""Builds a run's tokenizer and data, either of which may depend on the other."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from rl4dialog.core.config import TextConfig
from rl4dialog.data.run_data import Data
from rl4dialog.text.tokenizer import build_tokenizer
from rl4dialog.training.building.data import build_data


def build_run_tokenizer(config: TextConfig) -> tuple[PreTrainedTokenizerBase, Data]:
    """Build the tokenizer and the data, in the order of their dependency."""
    settings = config.tokenizer.model_dump()
    if config.tokenizer.model_name.startswith("builtin/"):
        data = build_data(config)
        train = data.samples("train")
        corpus = [text for sample in train for text in (sample.prompt_or_input_text, *sample.references)]
        return build_tokenizer(**settings, corpus=corpus, turn_marker=data.turn_marker), data
    tokenizer = build_tokenizer(**settings)
    return tokenizer, build_data(config, tokenizer)
