"""ROUGE (Lin 2004), computed by Google's rouge-score with stemming."""

from __future__ import annotations

from typing import Any, Literal, get_args

from rl4dialog.metrics.sentence_metric import SentenceMetric

RougeType = Literal["rouge1", "rouge2", "rougeL", "rougeLsum"]
ROUGE_TYPES: tuple[RougeType, ...] = get_args(RougeType)


class RougeMetric(SentenceMetric):
    """F-measures of ROUGE-1, -2, -L and -Lsum (sentences of the latter stand on lines of their own).

    Words are made of the letters a to z and digits, as the package has it: texts in other scripts score 0. The corpus
    score is the mean; RL4LMs logs the middle of a bootstrap, which varies around it.

    Args:
        use_single_ref: Compare with the first reference only, as RL4LMs; else the best of all counts.
    """

    def __init__(self, use_single_ref: bool = True) -> None:
        self._use_single_ref = use_single_ref

    def sentence_scores(
        self,
        prompt_texts: list[str],
        generated_texts: list[str],
        reference_texts: list[list[str]],
        meta_infos: list[dict[str, Any]] | None,
    ) -> dict[str, list[float]]:
        from rouge_score.rouge_scorer import RougeScorer

        scorer = RougeScorer(list(ROUGE_TYPES), use_stemmer=True)
        scores: dict[str, list[float]] = {name: [] for name in ROUGE_TYPES}
        for text, references in zip(generated_texts, reference_texts, strict=True):
            best = scorer.score_multi(references[:1] if self._use_single_ref else references, text)
            for name in ROUGE_TYPES:
                scores[name].append(float(best[name].fmeasure))
        return {f"lexical/rouge_{name}": each for name, each in scores.items()}
