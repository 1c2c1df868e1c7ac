"""The synthetic task of RL4LMs: write numbers that increase."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.arguments import Count
from rl4dialog.metrics.sentence_metric import SentenceMetric


def increasing_numbers_score(text: str, min_tokens: Count) -> float:
    """Length of the increasing run that the text begins with, over the number of words but at least ``min_tokens``.

    Words are split at white space; the run ends at the first that is no number, or not greater than the one before.
    RL4LMs passes over words that are no numbers, so that "x 1 2" has a run of 2, and asks for half of ``min_tokens``.

    Returns:
        0 to 1.
    """
    words = text.split()
    n_increasing, previous = 0, float("-inf")
    for word in words:
        try:
            number = float(word)
        except ValueError:
            break
        if not number > previous:
            break
        n_increasing, previous = n_increasing + 1, number
    return n_increasing / max(len(words), min_tokens, 1)


class IncreasingNumbersMetric(SentenceMetric):
    """Share of a text that is an increasing run of numbers, from its beginning on (``increasing_numbers_score``).

    Args:
        min_tokens: Words that a text must have for a full score.
    """

    needs_references = False

    def __init__(self, min_tokens: Count) -> None:
        self._min_tokens = min_tokens

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        scores = [increasing_numbers_score(text, self._min_tokens) for text in generated_texts]
        return {"synthetic/increasing_numbers_in_text": scores}
