"""RL4LMs' first synthetic task: write increasing numbers."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.arguments import Count
from rl4dialog.metrics.sentence_metric import SentenceMetric


def increasing_numbers_score(text: str, min_tokens: Count) -> float:
    """Length of the increasing sequence at the start of the text, divided by the number of words or ``min_tokens``.

    The divisor is the larger of the two. Words are split at whitespace; the sequence ends at the first word that is not
    a number, or not greater than the previous one. RL4LMs instead skips words that are not numbers, so that "x 1 2" has
    a sequence of length 2, and requires half of ``min_tokens``.

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
    """Share of a text that is an increasing sequence of numbers from its start (``increasing_numbers_score``).

    Args:
        min_tokens: Number of words required for a full score.
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
