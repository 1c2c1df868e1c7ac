"""Reward for writing numbers that increase."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.protocols import SentenceRewardFunction
from rl4dialog.metrics.increasing_numbers import increasing_numbers_score


class IncreasingNumbersReward(SentenceRewardFunction):
    """Share of the reply that is an increasing run of numbers.

    Args:
        min_tokens: Words that a reply must have for a full score.
    """

    def __init__(self, min_tokens: int) -> None:
        self._min_tokens = min_tokens

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        return increasing_numbers_score(gen_text, self._min_tokens)
