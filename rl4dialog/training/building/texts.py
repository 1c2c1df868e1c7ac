"""Tokenizer, samples and length limits of a run."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from rl4dialog.core.config import TextConfig
from rl4dialog.data.run_data import Data
from rl4dialog.training.building.lengths import Lengths, run_lengths
from rl4dialog.training.building.tokenizer import build_run_tokenizer


@dataclass(frozen=True)
class Texts:
    """Tokenizer, samples and length limits of a run."""

    tokenizer: PreTrainedTokenizerBase
    data: Data
    lengths: Lengths


def build_texts(config: TextConfig) -> Texts:
    """Build a run's tokenizer and data, and determine its length limits."""
    tokenizer, data = build_run_tokenizer(config)
    return Texts(tokenizer, data, run_lengths(config, tokenizer, data))
