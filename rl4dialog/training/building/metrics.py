"""Builds the metrics of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl4dialog.catalog import MetricRegistry
from rl4dialog.core.config import TextConfig
from rl4dialog.core.protocols import BaseMetric, DialogueMetric
from rl4dialog.training.building.rewards import reward_builder
from rl4dialog.training.building.toolkit import offered


def build_metrics(config: TextConfig, toolkit: Mapping[str, Any]) -> list[BaseMetric | DialogueMetric]:
    """Build the metrics of ``train_evaluation``."""
    build_part = reward_builder(toolkit)
    return [
        MetricRegistry.get(metric.id, metric.args, **offered(toolkit, metric.args), build_part=build_part)
        for metric in config.train_evaluation.metrics
    ]
