"""History of evaluation results, for callbacks that depend on it.

The history includes all results in the run folder. Callbacks that compute from it need no state of their own, and make
the same decisions after a resume.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.runs.run_folder import RunFolder

SPLIT = "val"  # the split evaluated during training
Key = Annotated[str, Field(min_length=1)]  # metric key
Mode = Literal["max", "min"]


class EvaluationResult(NamedTuple):
    """Metrics of a split after the given number of iterations; 0 means before training."""

    iteration: int
    split: str
    metrics: dict[str, float]


class MetricHistory:
    """Values of one metric of the val split by iteration.

    Args:
        evaluations: All results of the run in order. The list grows during the run.
        metric: Metric key.
        mode: ``max`` if higher is better, ``min`` if lower is.
        id: Id of the callback, for messages.
    """

    def __init__(self, evaluations: Sequence[EvaluationResult], metric: str, mode: Mode, id: str) -> None:
        self._evaluations, self._metric, self._id = evaluations, metric, id
        self._sign = 1.0 if mode == "max" else -1.0

    def values(self) -> list[tuple[int, float]]:
        """Iteration and value of each evaluation; NaN if the metric has no value.

        Raises:
            ConfigError: If the evaluations do not have the metric.
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
        """Iteration and value of the best evaluation so far, and the number of evaluations since.

        Args:
            min_delta: Minimum improvement over an earlier value; must be exceeded.
        """
        best: tuple[int, float, int] | None = None
        for iteration, value in self.values():
            if best is None or math.isnan(best[1]) or self._sign * (value - best[1]) > min_delta:
                best = (iteration, value, 0)
            else:
                best = (*best[:2], best[2] + 1)
        return best

    def reaches(self, value: float, threshold: float) -> bool:
        """Whether a value is at least as good as the threshold."""
        return self._sign * (value - threshold) >= 0


def recorded_evaluations(run_folder: RunFolder) -> list[EvaluationResult]:
    """Load the results of a run that is being resumed from its files."""
    found = []
    for split in ("val", "test"):
        for record in run_folder.read_jsonl(f"{split}_split_metrics.jsonl"):
            found.append(EvaluationResult(record["epoch"], split, record["metrics"]))
    return sorted(found, key=lambda result: result.iteration)
