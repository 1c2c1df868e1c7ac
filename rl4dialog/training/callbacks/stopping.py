"""Callbacks that stop training early. The final evaluation and saving still take place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rl4dialog.core.arguments import Count, NonNegative
from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.runs.run_folder import ROLLOUT_INFO_FILE, RunFolder
from rl4dialog.training.callbacks.base import IterationCallback
from rl4dialog.training.callbacks.history import EvaluationResult, Key, MetricHistory, Mode

_ROLLOUT = "rollout/"
_REWARD = f"{_ROLLOUT}task_reward"


class EarlyStopping(IterationCallback):
    """Stops training when a metric of the val split has not improved for some evaluations.

    Args:
        metric: Metric key in ``val_split_metrics.jsonl``.
        patience: Number of consecutive evaluations without an improvement over the best value.
        min_delta: Minimum improvement; must be exceeded.
        mode: ``max`` if higher is better, ``min`` if lower is.
        evaluations: The run's results; provided by the toolkit.
    """

    def __init__(
        self,
        metric: Key,
        patience: Count = 3,
        min_delta: NonNegative = 0.0,
        mode: Mode = "max",
        evaluations: Sequence[EvaluationResult] = (),
    ) -> None:
        super().__init__()
        self._history = MetricHistory(evaluations, metric, mode, "callback 'early_stopping'")
        self._metric, self._patience, self._min_delta = metric, patience, min_delta

    def _on_training_start(self) -> None:
        self._history.check()

    def _on_rollout_start(self) -> None:
        best = self._history.best(self._min_delta)
        if best is not None and best[2] >= self._patience:
            self.stop(
                f"val {self._metric} was best after iteration {best[0]} ({best[1]:.4g}) and has not improved in the "
                f"{best[2]} evaluations since"
            )


class StopOnRewardThreshold(IterationCallback):
    """Stops training when an iteration's mean reward, or a metric of the val split, reaches a threshold.

    Args:
        threshold: Value to reach.
        metric: A key of ``rollout_info.jsonl`` (with the prefix ``rollout/``) or of ``val_split_metrics.jsonl``.
        mode: ``max`` if higher is better, ``min`` if lower is.
        evaluations: The run's results; provided by the toolkit.
        run_folder: Run folder, in the process that writes; provided by the toolkit.
    """

    def __init__(
        self,
        threshold: float,
        metric: Key = _REWARD,
        mode: Mode = "max",
        evaluations: Sequence[EvaluationResult] = (),
        run_folder: RunFolder | None = None,
    ) -> None:
        super().__init__()
        self._history = MetricHistory(evaluations, metric, mode, "callback 'stop_on_reward_threshold'")
        self._metric, self._run_folder = metric, run_folder
        self._threshold = threshold

    @classmethod
    def reads_rollouts(cls, args: Mapping[str, Any]) -> bool:
        return str(args.get("metric", _REWARD)).startswith(_ROLLOUT)

    def _on_training_start(self) -> None:
        if not self._metric.startswith(_ROLLOUT):
            self._history.check()
        elif self._run_folder is not None:
            # A run that is resumed after the threshold was reached stops there too.
            for record in self._run_folder.read_jsonl(ROLLOUT_INFO_FILE):
                if record["iteration"] == self.iteration:
                    value = record.get(self._metric)
                    self._stop_if_reached(self._metric, math.nan if value is None else float(value))

    def _on_rollout_start(self) -> None:
        if not self._metric.startswith(_ROLLOUT) and (latest := self._history.latest()) is not None:
            self._stop_if_reached(f"val {self._metric}", latest[1])

    def _on_rollout_end(self) -> None:
        if not self._metric.startswith(_ROLLOUT):
            return
        logged = self.logger.name_to_value
        if self._metric not in logged:
            known = sorted(key for key in logged if key.startswith(_ROLLOUT))
            raise ConfigError(
                f"callback 'stop_on_reward_threshold': the rollouts have no {self._metric!r}"
                f"{nearest_hint(self._metric, known)} (they have: {', '.join(known)})"
            )
        self._stop_if_reached(self._metric, float(logged[self._metric]))

    def _stop_if_reached(self, name: str, value: float) -> None:
        if self._history.reaches(value, self._threshold):
            self.stop(f"{name} is {value:.4g}, which reaches the threshold of {self._threshold:g}")
