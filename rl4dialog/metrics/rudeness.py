"""Rudeness of texts by their words, for the task comment_reply."""

from __future__ import annotations

from typing import Any

from rl4dialog.metrics.sentence_metric import SentenceMetric
from rl4dialog.tasks.comment_reply.rudeness import MILD, POLITE, STRONG, rudeness_of


class RudenessMetric(SentenceMetric):
    """Level of the rude words in a text, from 0 to 2, and the shares of polite, mildly and strongly rude texts.

    Exact for the words of the datapool `comment_reply`. Other rude words are not known, and an empty text is polite.
    """

    needs_references = False
    key = "rudeness/level"

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        levels = [rudeness_of(text) for text in generated_texts]
        names = {"polite": POLITE, "mild": MILD, "strong": STRONG}
        return {
            "rudeness/level": [float(level) for level in levels],
            **{f"rudeness/{name}": [float(level == each) for level in levels] for name, each in names.items()},
        }
