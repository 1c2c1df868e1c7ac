"""The second synthetic task of RL4LMs as a reward: a date."""

from __future__ import annotations

from rl4dialog.metrics.dates import DatesMetric
from rl4dialog.rewards.metric_reward import MetricReward


class SentencesWithDatesReward(MetricReward):
    """1 for a reply with a date, like 2024-12-31, and 0 else."""

    build_metric = DatesMetric
