"""Texts that people judged, as reward models learn from them: rated ones, and pairs of which one is better.

A sample is one judgement. Its prompt is the text that was rated, or the better one of two. Its meta data contain
`RATING`, from 0 to 1, or `WORSE`, the other text.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rl4dialog.core.types import Sample
from rl4dialog.data.pool import TextGenPool
from rl4dialog.data.ratings import Unit

RATING = "rating"
"""Key of the meta data: the rating of the text, from 0 to 1."""
WORSE = "worse_text"
"""Key of the meta data: the text that the sample's is better than."""
N_WORDS_OF_WORSE = "n_words_of_worse"
"""Key of the meta data: the agent's number of words in that text; ``n_words`` is that of the sample's."""


class JudgedTexts(TextGenPool):
    """Judgements of one split.

    Attributes:
        unit: Whether replies or whole dialogues were judged.
        ratings: Names of the ratings whose mean is learned; empty if there are only comparisons.
        scale: The ratings that are 0 and 1; ``None`` without ratings, or where pools of several scales are mixed.
        context_size: Number of utterances before a reply; ``None`` for all.
    """

    unit: Unit = "reply"
    ratings: tuple[str, ...] = ()
    scale: tuple[float, float] | None = None
    context_size: int | None = None

    def judged(self) -> JudgedTexts:
        """Return the judgements, as pools do that can also be used for prompts and replies."""
        return self

    def without(self, left_out: set[int]) -> Self:
        """Return the judgements without those at some indices."""
        kept = [i for i in range(len(self)) if i not in left_out]
        pool = copy.copy(self)
        pool._samples, pool._weights = [self._samples[i] for i in kept], [self._weights[i] for i in kept]
        return pool


def is_comparison(sample: Sample) -> bool:
    """Whether a judgement compares two texts."""
    return WORSE in (sample.meta_data or {})


def meta_data_of(sample: Sample) -> Mapping[str, Any]:
    """The meta data of a judgement."""
    return sample.meta_data or {}


def judged_texts(samples: Sequence[Sample]) -> list[str]:
    """All texts of judgements: the rated or better text of each, then the worse text of each comparison, in order."""
    worse = (str(meta_data_of(sample)[WORSE]) for sample in samples if is_comparison(sample))
    return [*(sample.prompt_or_input_text for sample in samples), *worse]
