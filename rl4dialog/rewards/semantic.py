"""Model-based similarity of the reply to its references as a reward, computed in the main process."""

from __future__ import annotations

from typing import Any

from rl4dialog.metrics.bert_score import BertScoreMetric
from rl4dialog.metrics.bleurt import BleurtMetric
from rl4dialog.metrics.spider import SpiderMetric
from rl4dialog.rewards.metric_reward import BatchedMetricReward


class BertScoreReward(BatchedMetricReward):
    """BERTScore F1 of the reply."""

    build_metric = BertScoreMetric


class BleurtReward(BatchedMetricReward):
    """BLEURT of the reply against the best reference.

    Args:
        checkpoint: RL4LMs' name for ``config_name``.
        kwargs: Arguments of the metric, and ``shaping_fn``.
    """

    build_metric = BleurtMetric

    def __init__(self, checkpoint: str | None = None, **kwargs: Any) -> None:
        if checkpoint is not None:
            kwargs.setdefault("config_name", checkpoint)
        super().__init__(**kwargs)


class SpiderReward(BatchedMetricReward):
    """Weighted sum of SPICE and CIDEr of the reply.

    CIDEr weights words by how rare they are in the references of all replies scored together, which are those that end
    in the same step of the environments: with few environments (``env.n_envs``) it is noisy, and with one it is 0.
    """

    build_metric = SpiderMetric
