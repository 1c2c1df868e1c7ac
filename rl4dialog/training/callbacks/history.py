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
        where: Place of the metric in the config, for messages.
    """

    def __init__(self, evaluations: Sequence[EvaluationResult], metric: str, mode: Mode, where: str) -> None:
        self._evaluations, self.metric, self._where = evaluations, metric, where
        self._sign = 1.0 if mode == "max" else -1.0

    def check(self) -> None:
        """Check that the evaluations have the metric, if there are any."""
        found = [result.metrics for result in self._evaluations if result.split == SPLIT]
        known = sorted({key for metrics in found for key in metrics})
        if found and self.metric not in known:
            raise ConfigError(
                f"{self._where}: the evaluations have no metric {self.metric!r}{nearest_hint(self.metric, known)} "
                f"(they have: {', '.join(known) or 'none'})"
            )

    def values(self) -> list[tuple[int, float]]:
        """Iteration and value of each evaluation; NaN if the metric has no value."""
        found = [
            (result.iteration, result.metrics.get(self.metric)) for result in self._evaluations if result.split == SPLIT
        ]
        return [(iteration, math.nan if value is None else float(value)) for iteration, value in found]

    def latest(self) -> tuple[int, float] | None:
        """Iteration and value of the last evaluation."""
        values = self.values()
        return values[-1] if values else None

    def best(self, min_delta: float = 0.0, skip_start: bool = False) -> tuple[int, float, int] | None:
        """Iteration and value of the best evaluation so far, and the number of evaluations since.

        Of equal values the first one is the best, and only finite values count.

        Args:
            min_delta: Minimum improvement over an earlier value; must be exceeded.
            skip_start: Skip the evaluation before training.
        """
        best: tuple[int, float, int] | None = None
        for iteration, value in self.values():
            if skip_start and iteration == 0:
                continue
            if math.isfinite(value) and (best is None or self._sign * (value - best[1]) > min_delta):
                best = (iteration, value, 0)
            elif best is not None:
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
