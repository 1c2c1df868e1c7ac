"""Reward of the task comment_reply: the rudeness of the reply as a cost."""

from __future__ import annotations

from typing import Any

from rl4dialog.metrics.rudeness import RudenessMetric
from rl4dialog.rewards.metric_reward import MetricReward


class RudenessReward(MetricReward):
    """``-scale`` times the rudeness of the reply, which is 0, 1 or 2 by its words; see the metric `rudeness`.

    Args:
        scale: Cost of each level.
        kwargs: Arguments of `MetricReward`.
    """

    build_metric = RudenessMetric

    def __init__(self, scale: float = 5.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.key = {"rudeness/level": -scale}
