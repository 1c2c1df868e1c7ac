"""BLEU over words split at whitespace, without smoothing, as logged by RL4LMs."""

from __future__ import annotations

from rl4dialog.metrics.sacre_bleu import SacreBleuMetric


class BleuMetric(SacreBleuMetric):
    """Corpus BLEU of order 4 from 0 to 1, unsmoothed; sentence scores are smoothed, because most would be 0 otherwise.

    Sentence scores use sacrebleu's exponential smoothing and effective order. With several references, the one closest
    in length determines the brevity penalty, as in Papineni et al.; RL4LMs' library uses the shortest.
    """

    key = "lexical/bleu"

    def __init__(self) -> None:
        super().__init__(tokenize="none", smooth_method="none", force=True)
