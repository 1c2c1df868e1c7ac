"""RL4LMs' second synthetic task as a reward: dates."""

from __future__ import annotations

from rl4dialog.metrics.dates import DatesMetric
from rl4dialog.rewards.metric_reward import MetricReward


class SentencesWithDatesReward(MetricReward):
    """1 for a reply that contains a date such as 2024-12-31, otherwise 0."""

    build_metric = DatesMetric
