"""BLEU over words split at white space and without smoothing, as RL4LMs logs it."""

from __future__ import annotations

from rl4dialog.metrics.sacre_bleu import SacreBleuMetric


class BleuMetric(SacreBleuMetric):
    """Corpus BLEU of order 4 from 0 to 1, unsmoothed; sentence scores are smoothed, as they would be 0 otherwise.

    The smoothing is sacrebleu's exponential one, with effective order. Of several references the one closest in
    length counts for the brevity penalty, as Papineni et al. have it; RL4LMs' library takes the shortest.
    """

    key = "lexical/bleu"

    def __init__(self) -> None:
        super().__init__(tokenize="none", smooth_method="none", force=True)
