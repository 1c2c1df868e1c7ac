"""Base class of metrics that score each text separately; the corpus score is the mean."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from rl4dialog.core.protocols import BaseMetric, MetricResult
from rl4dialog.metrics.checks import check_lengths, check_references


class SentenceMetric(BaseMetric):
    """Checks the texts, scores each one, and averages."""

    needs_references = True

    @abstractmethod
    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        """Score each of one or more texts; returns a list of scores per key."""

    def compute(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None = None,
        model: Any = None,
        split_name: str | None = None,
    ) -> MetricResult:
        check_lengths(generated_texts, prompt_texts, reference_texts, meta_infos)
        if self.needs_references:
            check_references(reference_texts)
        found = self.sentence_scores(prompt_texts, generated_texts, reference_texts, meta_infos)
        return {key: (scores, sum(scores) / len(scores)) for key, scores in found.items()}
