"""RL4LMs' second synthetic task: write a date."""

from __future__ import annotations

import re
from typing import Any

from rl4dialog.metrics.sentence_metric import SentenceMetric

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def has_date(text: str) -> bool:
    """Whether a text contains a date in the format ``2024-12-31``, valid or not."""
    return _DATE.search(text) is not None


class DatesMetric(SentenceMetric):
    """Share of texts that contain a date in the format ``2024-12-31``."""

    needs_references = False

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        return {"synthetic/dates_in_text": [float(has_date(text)) for text in generated_texts]}
