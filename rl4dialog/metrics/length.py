"""Length of texts."""

from __future__ import annotations

from typing import Any

from rl4dialog.metrics.sentence_metric import SentenceMetric


class LengthMetric(SentenceMetric):
    """Words per text, split at whitespace."""

    needs_references = False

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        return {"length/words": [float(len(text.split())) for text in generated_texts]}
