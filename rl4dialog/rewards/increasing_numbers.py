"""The first synthetic task of RL4LMs as a reward: numbers that increase."""

from __future__ import annotations

from rl4dialog.metrics.increasing_numbers import IncreasingNumbersMetric
from rl4dialog.rewards.metric_reward import MetricReward


class IncreasingNumbersReward(MetricReward):
    """Share of the reply that is an increasing run of numbers."""

    build_metric = IncreasingNumbersMetric
