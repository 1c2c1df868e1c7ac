"""chrF and chrF++ (Popović 2015 and 2017), computed by sacrebleu."""

from __future__ import annotations

from rl4dialog.metrics.sacre import SacreMetric, build_scorer


class ChrfMetric(SacreMetric):
    """Character n-gram F-score from 0 to 1; with ``word_order: 2`` it is chrF++.

    Arguments are those of ``sacrebleu.metrics.CHRF``.

    Raises:
        ConfigError: If sacrebleu does not accept an argument.
    """

    key = "lexical/chrf"

    def __init__(
        self,
        char_order: int = 6,
        word_order: int = 0,
        beta: int = 2,
        lowercase: bool = False,
        whitespace: bool = False,
        eps_smoothing: bool = False,
    ) -> None:
        from sacrebleu.metrics import CHRF

        super().__init__(
            build_scorer(
                "chrf",
                CHRF,
                char_order=char_order,
                word_order=word_order,
                beta=beta,
                lowercase=lowercase,
                whitespace=whitespace,
                eps_smoothing=eps_smoothing,
            )
        )
