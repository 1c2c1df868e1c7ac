"""The base class of the toolkit's callbacks, the evaluations that they read, and all callbacks of a config."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field
from stable_baselines3.common.callbacks import BaseCallback, CallbackList

from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.runs.run_folder import RunFolder


class IterationCallback(BaseCallback):
    """Acts between iterations, at the start of a rollout, when training on the last one is finished.

    Attributes:
        stop_reason: Reason for stopping the training; ``None`` if it has not been stopped.
    """

    stop_reason: str | None = None
    model: Any

    @classmethod
    def reads_rollouts(cls, args: Mapping[str, Any]) -> bool:
        """Whether the callback with these arguments reads rollouts, which supervised runs do not have."""
        return False

    @property
    def iteration(self) -> int:
        """Number of collected iterations."""
        return int(self.model.iteration)

    def stop(self, reason: str) -> None:
        """Stop before the next rollout. Stopping in ``_on_step`` would discard a partial rollout."""
        self.stop_reason, self.model.stop_requested = reason, True

    def _act(self) -> None:
        """Act after an iteration; by default at the start of the next rollout and at the end of training."""

    def _on_rollout_start(self) -> None:
        self._act()

    def _on_training_end(self) -> None:
        self._act()

    def _on_step(self) -> bool:
        return True


class FeatureCallback(IterationCallback):
    """Accompanies every run that trains a policy, for the feature that names what makes it in its ``callbacks``.

    It acts when the logged values of an iteration are recorded, before the callbacks of the config.
    """

    def check_start(self, predictions: Sequence[Mapping[str, Any]]) -> None:
        """Act on the records of the val split before training; empty in a process that does not make them."""

    @property
    def summary(self) -> str | None:
        """What to print after training, if anything."""
        return None


SPLIT = "val"  # the split evaluated during training
Key = Annotated[str, Field(min_length=1)]  # metric key
Mode = Literal["max", "min"]


class EvaluationResult(NamedTuple):
    """Metrics of a split after the given number of iterations; 0 means before training."""

    iteration: int
    split: str
    metrics: dict[str, float]


class MetricHistory:
    """Values of one metric of the val split by iteration."""

    def __init__(self, evaluations: Sequence[EvaluationResult], metric: str, mode: Mode, where: str) -> None:
        self._evaluations, self.metric, self._where = evaluations, metric, where
        self._sign = 1.0 if mode == "max" else -1.0

    def check(self) -> None:
        """Check that the evaluations have the metric, if there are any."""
        found = [result.metrics for result in self._evaluations if result.split == SPLIT]
        known = sorted({key for metrics in found for key in metrics})
        if found and self.metric not in known:
            hint = f"{nearest_hint(self.metric, known)} (they have: {', '.join(known) or 'none'})"
            raise ConfigError(f"{self._where}: the evaluations have no metric {self.metric!r}{hint}")

    def values(self) -> list[tuple[int, float]]:
        """Iteration and value of each evaluation; NaN if the metric has no value."""
        found = [(each.iteration, each.metrics.get(self.metric)) for each in self._evaluations if each.split == SPLIT]
        return [(iteration, math.nan if value is None else float(value)) for iteration, value in found]

    def latest(self) -> tuple[int, float] | None:
        """Iteration and value of the last evaluation."""
        return next(reversed(self.values()), None)

    def best(self, skip_start: bool = False) -> tuple[int, float, int] | None:
        """Iteration and value of the best evaluation, and the number of those since."""
        best: tuple[int, float, int] | None = None
        for iteration, value in self.values():
            if skip_start and iteration == 0:
                continue
            if math.isfinite(value) and (best is None or self._sign * (value - best[1]) > 0):
                best = (iteration, value, 0)
            elif best is not None:
                best = (*best[:2], best[2] + 1)
        return best

    def reaches(self, value: float, threshold: float) -> bool:
        """Whether a value is at least as good as the threshold."""
        return self._sign * (value - threshold) >= 0


def recorded_evaluations(run_folder: RunFolder) -> list[EvaluationResult]:
    """Load the results of a run that is being resumed from its files."""
    records = ((split, r) for split in ("val", "test") for r in run_folder.read_jsonl(f"{split}_split_metrics.jsonl"))
    found = [EvaluationResult(record["epoch"], split, record["metrics"]) for split, record in records]
    return sorted(found, key=lambda result: result.iteration)


class ConfiguredCallbacks(CallbackList):
    """Calls the callbacks in the config's order, and records which one stopped the training."""

    def __init__(self, named: Sequence[tuple[str, BaseCallback]]) -> None:
        super().__init__([callback for _, callback in named])
        self._named, self._refusals = named, set[int]()

    @property
    def stopped_by(self) -> str | None:
        """Id and reason of the callback that stopped the training; ``None`` if none has."""
        for i, (id, callback) in enumerate(self._named):
            refusal = "its _on_step returned False" if i in self._refusals else None
            if reason := getattr(callback, "stop_reason", None) or refusal:
                return f"{id}: {reason}"
        return None

    def _on_step(self) -> bool:
        self._refusals |= {i for i, callback in enumerate(self.callbacks) if not callback.on_step()}
        return not self._refusals
