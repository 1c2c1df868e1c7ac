"""ROUGE (Lin 2004), computed by Google's rouge-score."""

from __future__ import annotations

import functools
import logging
import re
from typing import Any, Literal, get_args

from rl4dialog.metrics.sentence_metric import SentenceMetric

RougeType = Literal["rouge1", "rouge2", "rougeL", "rougeLsum"]
_warn_once = functools.cache(logging.getLogger(__name__).warning)
ROUGE_TYPES: tuple[RougeType, ...] = get_args(RougeType)


class RougeMetric(SentenceMetric):
    """F-measures of ROUGE-1, -2, -L and -Lsum (for the last, each line is a sentence).

    The package only counts the letters a to z and digits, so texts in other scripts score 0. The corpus score is the
    mean; RL4LMs logs the median of a bootstrap, which is close to it.

    Args:
        use_single_ref: Compare only with the first reference, as RL4LMs does; otherwise the best reference counts.
        use_stemmer: Compare stems (Porter), as RL4LMs does. Many published results do not, such as T5's.
    """

    def __init__(self, use_single_ref: bool = True, use_stemmer: bool = True) -> None:
        self._use_single_ref, self._use_stemmer = use_single_ref, use_stemmer

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        from rouge_score.rouge_scorer import RougeScorer

        warn_of_other_scripts(reference_texts)
        scorer = RougeScorer(list(ROUGE_TYPES), use_stemmer=self._use_stemmer)
        scores: dict[str, list[float]] = {name: [] for name in ROUGE_TYPES}
        for text, references in zip(generated_texts, reference_texts, strict=True):
            best = scorer.score_multi(references[:1] if self._use_single_ref else references, text)
            for name in ROUGE_TYPES:
                scores[name].append(float(best[name].fmeasure))
        return {f"lexical/rouge_{name}": each for name, each in scores.items()}


def warn_of_other_scripts(reference_texts: list[list[str]]) -> None:
    """Warn, once per process, if a reference has letters but none that ROUGE counts."""
    texts = [text for references in reference_texts for text in references]
    if any(re.search(r"\w", text) and not re.search(r"[a-z0-9]", text.lower()) for text in texts):
        _warn_once(
            "ROUGE only counts the letters a to z and digits, so references in other scripts always score 0, even for "
            "the same text; use chrf, which counts the characters of any script"
        )
