"""ROUGE-L against the best reference, as py-rouge computes it."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from rl4dialog.core.arguments import Fraction, NonNegativeInt, Positive
from rl4dialog.scores.adapters import MetricReward
from rl4dialog.scores.base import Batch, SentenceMetric
from rl4dialog.scores.overlap import warn_of_other_scripts


class RougeLMaxMetric(SentenceMetric):
    """ROUGE-L against the best reference; lines count as sentences (the union of their common subsequences).

    It is used for NarrativeQA. Arguments are those of RL4LMs' py-rouge, which also knows stems of irregular words.

    Args:
        stemming: Compare stems (Porter).
        alpha: Weight of precision in the F-measure ``P * R / ((1 - alpha) * P + alpha * R)``.
        limit_length: Whether to truncate texts and references.
        length_limit: Maximum length.
        length_limit_type: Unit of the maximum length: ``words``, or ``bytes``, which are characters, as in py-rouge.
        max_n: No effect; used by py-rouge for other scores.
        apply_avg: No effect; used by py-rouge for the corpus score, which is the mean here.
        apply_best: No effect; the best reference always counts.
        ensure_compatibility: No effect; used by py-rouge for compatibility with a script of 2004.
        weight_factor: Precision and recall are raised to the power ``1 / weight_factor``, as in py-rouge and RL4LMs,
            whose configs set 1.2. This is part of ROUGE-W; standard ROUGE-L uses 1.
    """

    no_effect: ClassVar[dict[str, str]] = {
        "max_n": "used by py-rouge for other scores",
        "apply_avg": "used by py-rouge for the corpus score, which is the mean here",
        "apply_best": "the best reference always counts",
        "ensure_compatibility": "used by py-rouge for compatibility with a script of 2004",
    }

    def __init__(
        self,
        stemming: bool = True,
        alpha: Fraction = 0.5,
        limit_length: bool = True,
        length_limit: NonNegativeInt = 665,
        length_limit_type: Literal["words", "bytes"] = "bytes",
        max_n: Any = None,
        apply_avg: Any = None,
        apply_best: Any = None,
        weight_factor: Positive = 1.0,
        ensure_compatibility: Any = None,
    ) -> None:
        from rouge_score.rouge_scorer import RougeScorer

        self._power = 1 / weight_factor
        self._scorer = RougeScorer(["rougeLsum"], use_stemmer=stemming)
        self._alpha = alpha
        # As in py-rouge, 0 disables the limit.
        self._limit, self._limit_type = (length_limit if limit_length else 0), length_limit_type

    def sentence_scores(self, batch: Batch) -> dict[str, list[float]]:
        warn_of_other_scripts(batch.ref_texts)
        pairs = zip(batch.gen_texts, batch.ref_texts, strict=True)
        return {"lexical/rouge_l_max": [max(self._f_measure(text, each) for each in refs) for text, refs in pairs]}

    def _f_measure(self, text: str, reference: str) -> float:
        score = self._scorer.score(self._cut(reference), self._cut(text))["rougeLsum"]
        if not score.precision or not score.recall:
            return 0.0
        precision, recall = score.precision**self._power, score.recall**self._power
        return float(precision * recall / ((1 - self._alpha) * precision + self._alpha * recall))

    def _cut(self, text: str) -> str:
        if not self._limit:
            return text
        if self._limit_type == "bytes":
            return text[: self._limit]
        words = list(re.finditer(r"\S+", text))[: self._limit]
        return text[: words[-1].end()] if words else ""


class RougeLMaxReward(MetricReward, metric=RougeLMaxMetric):
    """ROUGE-L of the reply against the best reference."""

    key = "lexical/rouge_l_max"
