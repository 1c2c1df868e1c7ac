"""Translation edit rate (Snover et al. 2006), computed by sacrebleu."""

from __future__ import annotations

from rl4dialog.metrics.sacre import SacreMetric


class TerMetric(SacreMetric):
    """Edits, including phrase shifts, per reference word: 0 is best, and a long wrong text exceeds 1.

    Arguments are those of ``sacrebleu.metrics.TER``.
    """

    key = "lexical/ter"

    def __init__(
        self,
        normalized: bool = False,
        no_punct: bool = False,
        asian_support: bool = False,
        case_sensitive: bool = False,
    ) -> None:
        from sacrebleu.metrics import TER

        super().__init__(TER(normalized, no_punct, asian_support, case_sensitive))
