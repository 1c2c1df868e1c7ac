"""SPIDEr (Liu et al. 2017, arXiv 1612.00370): SPICE for content, CIDEr for fluency."""

from __future__ import annotations

from typing import Any

from rl4dialog.metrics.cider import CiderMetric
from rl4dialog.metrics.sentence_metric import SentenceMetric
from rl4dialog.metrics.spice import SpiceMetric


class SpiderMetric(SentenceMetric):
    """Weighted sum of SPICE (0 to 1) and CIDEr (0 to 10); a term with weight 0 is not computed.

    As with CIDEr, the score of a text depends on the others.

    Args:
        spice_coeff: Weight of SPICE.
        cider_coeff: Weight of CIDEr.
        spice_path: SPICE's folder, as in the metric ``spice``.
        java: Name or path of the Java program.
        memory: Maximum memory, in Java's notation.
        cache_path: Folder for parsed sentences.

    Raises:
        ModelError: If SPICE's program is missing and its weight is not 0.
    """

    def __init__(
        self,
        spice_coeff: float = 0.5,
        cider_coeff: float = 0.5,
        spice_path: str | None = None,
        java: str = "java",
        memory: str = "8G",
        cache_path: str | None = None,
    ) -> None:
        self._terms: list[tuple[float, SentenceMetric]] = []
        if spice_coeff:
            self._terms.append((spice_coeff, SpiceMetric(spice_path, java, memory, cache_path)))
        if cider_coeff:
            self._terms.append((cider_coeff, CiderMetric()))

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        total = [0.0] * len(generated_texts)
        for coeff, metric in self._terms:
            (scores,) = metric.sentence_scores(prompt_texts, generated_texts, reference_texts, meta_infos).values()
            total = [a + coeff * b for a, b in zip(total, scores, strict=True)]
        return {"lexical/spider": total}
