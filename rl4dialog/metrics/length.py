"""Length of the texts."""

from __future__ import annotations

from typing import Any

from rl4dialog.core.protocols import BaseMetric, MetricResult
from rl4dialog.metrics.checks import check_lengths


class LengthMetric(BaseMetric):
    """Words per text, split at white space."""

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
        lengths = [float(len(text.split())) for text in generated_texts]
        return {"length/words": (lengths, sum(lengths) / len(lengths))}
