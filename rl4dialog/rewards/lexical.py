"""Lexical overlap of the reply with its references as a reward, computed in the env workers."""

from __future__ import annotations

from typing import Any

from rl4dialog.metrics.bleu import BleuMetric
from rl4dialog.metrics.chrf import ChrfMetric
from rl4dialog.metrics.meteor import MeteorMetric
from rl4dialog.metrics.parent_totto import ParentTottoMetric
from rl4dialog.metrics.rouge import RougeMetric, RougeType
from rl4dialog.metrics.rouge_l_max import RougeLMaxMetric
from rl4dialog.metrics.sacre_bleu import SacreBleuMetric
from rl4dialog.metrics.ter import TerMetric
from rl4dialog.rewards.metric_reward import MetricReward


class MeteorReward(MetricReward):
    """METEOR of the reply."""

    build_metric = MeteorMetric


class RougeReward(MetricReward):
    """ROUGE F-measure of the reply."""

    build_metric = RougeMetric

    def __init__(self, rouge_type: RougeType = "rouge1", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.key = f"lexical/rouge_{rouge_type}"


class RougeCombinedReward(MetricReward):
    """Mean of ROUGE-1, ROUGE-2 and ROUGE-L of the reply."""

    build_metric = RougeMetric
    key = {f"lexical/rouge_{name}": 1 / 3 for name in ("rouge1", "rouge2", "rougeL")}  # noqa: RUF012 (never changes)


class RougeLMaxReward(MetricReward):
    """ROUGE-L of the reply against the best reference."""

    build_metric = RougeLMaxMetric
    key = "lexical/rouge_l_max"


class BleuReward(MetricReward):
    """Smoothed sentence BLEU of the reply."""

    build_metric = BleuMetric


class SacreBleuReward(MetricReward):
    """Sentence BLEU of the reply, computed by sacrebleu."""

    build_metric = SacreBleuMetric


class TerReward(MetricReward):
    """1 - translation edit rate of the reply, as in RL4LMs; at most 1, and below 0 for long wrong replies."""

    build_metric = TerMetric

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        return 1.0 - super().score(prompt_text, gen_text, ref_texts, meta_info)


class ChrfReward(MetricReward):
    """Character n-gram F-score of the reply."""

    build_metric = ChrfMetric


class ParentReward(MetricReward):
    """PARENT F-score of the reply against its references and its table (ToTTo samples)."""

    build_metric = ParentTottoMetric
    key = "table_to_text/parent_overall_f_score"
