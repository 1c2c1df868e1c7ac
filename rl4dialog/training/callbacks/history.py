"""What evaluations have found so far, for callbacks that decide by it.

The history holds all that the run folder does, so a callback that computes from it needs no state of its own, and
decides the same after a resume.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.runs.run_folder import RunFolder

SPLIT = "val"  # the one that is evaluated during training
Key = Annotated[str, Field(min_length=1)]  # of a metric
Mode = Literal["max", "min"]


class EvaluationResult(NamedTuple):
    """Metrics of a split after so many iterations; 0 is before training."""

    iteration: int
    split: str
    metrics: dict[str, float]


class MetricHistory:
    """One metric of the val split over the iterations.

    Args:
        evaluations: All results of the run, in their order; it grows meanwhile.
        metric: Its key.
        mode: ``max`` if more is better, ``min`` if less is.
        id: Of the callback, for messages.
    """

    def __init__(self, evaluations: Sequence[EvaluationResult], metric: str, mode: Mode, id: str) -> None:
        self._evaluations, self._metric, self._id = evaluations, metric, id
        self._sign = 1.0 if mode == "max" else -1.0

    def values(self) -> list[tuple[int, float]]:
        """Iteration and value of each evaluation; NaN where the metric has none.

        Raises:
            ConfigError: If the evaluations have no such metric.
        """
        found = [result for result in self._evaluations if result.split == SPLIT]
        known = sorted({key for result in found for key in result.metrics})
        if found and self._metric not in known:
            raise ConfigError(
                f"callback {self._id!r}: the evaluations have no metric {self._metric!r}"
                f"{nearest_hint(self._metric, known)} (they have: {', '.join(known) or 'none'})"
            )
        values = [(result.iteration, result.metrics.get(self._metric)) for result in found]
        return [(iteration, math.nan if value is None else float(value)) for iteration, value in values]

    def latest(self) -> tuple[int, float] | None:
        """Iteration and value of the last evaluation."""
        values = self.values()
        return values[-1] if values else None

    def best(self, min_delta: float = 0.0) -> tuple[int, float, int] | None:
        """Iteration and value of the best evaluation so far, and how many have come after it.

        Args:
            min_delta: By how much more than this a value must be better than an earlier one to count as better.
        """
        best: tuple[int, float, int] | None = None
        for iteration, value in self.values():
            if best is None or math.isnan(best[1]) or self._sign * (value - best[1]) > min_delta:
                best = (iteration, value, 0)
            else:
                best = (*best[:2], best[2] + 1)
        return best

    def reaches(self, value: float, threshold: float) -> bool:
        """Whether a value is as good as the threshold."""
        return self._sign * (value - threshold) >= 0


def recorded_evaluations(run_folder: RunFolder) -> list[EvaluationResult]:
    """What an earlier part of the run has found, by its files."""
    found = []
    for split in ("val", "test"):
        for record in run_folder.read_jsonl(f"{split}_split_metrics.jsonl"):
            found.append(EvaluationResult(record["epoch"], split, record["metrics"]))
    return sorted(found, key=lambda result: result.iteration)
