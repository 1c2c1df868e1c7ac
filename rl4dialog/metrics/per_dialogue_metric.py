"""Base class of metrics that score each conversation separately; the corpus score is the mean."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from rl4dialog.core.protocols import DialogueMetric, MetricResult
from rl4dialog.core.types import Dialogue
from rl4dialog.metrics.checks import check_lengths


class PerDialogueMetric(DialogueMetric):
    """Scores each conversation, and averages over those that have a score."""

    @abstractmethod
    def dialogue_scores(self, dialogues: list[Dialogue]) -> dict[str, list[float]]:
        """Score each of one or more conversations; returns a list of scores per key, NaN where none is defined."""

    def compute(self, dialogues: list[Dialogue], model: Any = None, split_name: str | None = None) -> MetricResult:
        check_lengths(dialogues)
        return {key: (scores, mean_of_known(scores)) for key, scores in self.dialogue_scores(dialogues).items()}


def mean_of_known(scores: Sequence[float]) -> float:
    """Mean of the scores that are not NaN; NaN if there are none."""
    known = [score for score in scores if not math.isnan(score)]
    return sum(known) / len(known) if known else math.nan
