"""BLEU (Papineni et al. 2002), computed by sacrebleu."""

from __future__ import annotations

from typing import Any

from rl4dialog.metrics.sacre import SacreMetric, build_scorer


class SacreBleuMetric(SacreMetric):
    """Corpus BLEU from 0 to 1; sentence scores use sacrebleu's smoothing and effective order.

    Arguments are those of ``sacrebleu.metrics.BLEU``; ``effective_order`` applies to the corpus score.

    Raises:
        ConfigError: If sacrebleu does not accept an argument.
    """

    key = "lexical/sacrebleu"

    def __init__(
        self,
        tokenize: str | None = None,
        lowercase: bool = False,
        force: bool = False,
        smooth_method: str = "exp",
        smooth_value: float | None = None,
        max_ngram_order: int = 4,
        effective_order: bool = False,
    ) -> None:
        from sacrebleu.metrics import BLEU

        args: dict[str, Any] = {
            "tokenize": tokenize,
            "lowercase": lowercase,
            "force": force,
            "smooth_value": smooth_value,
            "max_ngram_order": max_ngram_order,
        }
        corpus = build_scorer("sacre_bleu", BLEU, **args, smooth_method=smooth_method, effective_order=effective_order)
        # Without smoothing, most sentences would score 0.
        sentence_smoothing = "exp" if smooth_method == "none" else smooth_method
        super().__init__(corpus, BLEU(**args, smooth_method=sentence_smoothing, effective_order=True))
