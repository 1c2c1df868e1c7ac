"""A model's opinion of the reply and its references as a reward, computed in the main process."""

from __future__ import annotations

from typing import Any

from rl4dialog.metrics.bert_score import BertScoreMetric
from rl4dialog.metrics.bleurt import BleurtMetric
from rl4dialog.metrics.spider import SpiderMetric
from rl4dialog.rewards.metric_reward import BatchedMetricReward


class BertScoreReward(BatchedMetricReward):
    """F1 of BERTScore of the reply."""

    build_metric = BertScoreMetric


class BleurtReward(BatchedMetricReward):
    """BLEURT of the reply and the best reference.

    Args:
        checkpoint: RL4LMs' name for ``config_name``.
        kwargs: Of the metric, and ``shaping_fn``.
    """

    build_metric = BleurtMetric

    def __init__(self, checkpoint: str | None = None, **kwargs: Any) -> None:
        if checkpoint is not None:
            kwargs.setdefault("config_name", checkpoint)
        super().__init__(**kwargs)


class SpiderReward(BatchedMetricReward):
    """Weighted sum of SPICE and CIDEr of the reply.

    CIDEr counts how rare words are over the references of the replies that are scored together, which are those that
    end in the same step of the environments: with few of them (``env.n_envs``) it says little, and with one it is 0.
    """

    build_metric = SpiderMetric
