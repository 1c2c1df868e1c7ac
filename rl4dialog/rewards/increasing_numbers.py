"""RL4LMs' first synthetic task as a reward: increasing numbers."""

from __future__ import annotations

from rl4dialog.metrics.increasing_numbers import IncreasingNumbersMetric
from rl4dialog.rewards.metric_reward import MetricReward


class IncreasingNumbersReward(MetricReward):
    """Share of the reply that is an increasing sequence of numbers."""

    build_metric = IncreasingNumbersMetric
