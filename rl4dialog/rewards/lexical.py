"""Overlap of the reply with its references as a reward."""

from __future__ import annotations

from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.metrics.bleu import BleuMetric
from rl4dialog.metrics.meteor import MeteorMetric
from rl4dialog.metrics.rouge import ROUGE_TYPES, RougeMetric
from rl4dialog.metrics.sacre_bleu import SacreBleuMetric
from rl4dialog.rewards.metric_reward import MetricReward


class MeteorReward(MetricReward):
    """METEOR of the reply."""

    def __init__(self, shaping_fn: str | None = None, synonyms: bool = True, wordnet_path: str | None = None) -> None:
        metric = MeteorMetric(synonyms, wordnet_path)
        super().__init__(metric, metric.key, shaping_fn)


class RougeReward(MetricReward):
    """ROUGE F-measure of the reply."""

    def __init__(self, rouge_type: str = "rouge1", shaping_fn: str | None = None, use_single_ref: bool = True) -> None:
        if rouge_type not in ROUGE_TYPES:
            raise ConfigError(
                f"reward 'rouge': unknown rouge_type {rouge_type!r}{nearest_hint(rouge_type, ROUGE_TYPES)} "
                f"(known: {', '.join(ROUGE_TYPES)})"
            )
        super().__init__(RougeMetric(use_single_ref), f"lexical/rouge_{rouge_type}", shaping_fn)


class BleuReward(MetricReward):
    """Smoothed sentence BLEU of the reply."""

    def __init__(self, shaping_fn: str | None = None) -> None:
        super().__init__(BleuMetric(), BleuMetric.key, shaping_fn)


class SacreBleuReward(MetricReward):
    """Sentence BLEU of the reply by sacrebleu."""

    def __init__(
        self,
        tokenize: str | None = None,
        lowercase: bool = False,
        smooth_method: str = "exp",
        smooth_value: float | None = None,
        max_ngram_order: int = 4,
        shaping_fn: str | None = None,
    ) -> None:
        metric = SacreBleuMetric(
            tokenize,
            lowercase,
            smooth_method=smooth_method,
            smooth_value=smooth_value,
            max_ngram_order=max_ngram_order,
        )
        super().__init__(metric, metric.key, shaping_fn)
