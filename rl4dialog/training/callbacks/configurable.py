"""Callbacks for configs: they keep the best model, stop the training, or call another callback."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, EventCallback

from rl4dialog.core.arguments import Count
from rl4dialog.core.errors import ConfigError, RunFolderError, nearest_hint
from rl4dialog.runs.progress import say
from rl4dialog.runs.run_folder import BEST_MODEL_FOLDER, ROLLOUT_INFO_FILE, RunFolder
from rl4dialog.training.callbacks.base import EvaluationResult, IterationCallback, Key, MetricHistory, Mode

_logger = logging.getLogger(__name__)


class SaveBestModel(IterationCallback):
    """Saves the model with the best evaluation on the val split to ``best_model/``, in transformers' format.

    The model before training is included. A better model replaces the whole folder. If writing fails, a warning is
    logged.

    Args:
        metric: Metric key in ``val_split_metrics.jsonl``.
        mode: ``max`` if higher is better, ``min`` if lower is.
        evaluations: The run's results; provided by the toolkit.
        save_model: Saves the model to a folder of the run; provided by the toolkit.
    """

    def __init__(
        self,
        metric: Key,
        mode: Mode = "max",
        evaluations: Sequence[EvaluationResult] = (),
        save_model: Callable[[str], Any] = lambda _: None,
    ) -> None:
        super().__init__()
        self._history = MetricHistory(evaluations, metric, mode, "callback 'save_best_model'")
        self._metric, self._save_model, self._saved = metric, save_model, -1

    def _on_training_start(self) -> None:
        self._history.check()

    def _act(self) -> None:
        best = self._history.best()
        if best is None or best[0] != self.iteration or best[0] == self._saved:
            return
        self._saved = best[0]
        try:
            self._save_model(BEST_MODEL_FOLDER)
        except RunFolderError as error:
            _logger.warning("best_model/ could not be updated to iteration %d, the best so far: %s", best[0], error)
            return
        say(f"best model so far: val {self._metric} {best[1]:.4g} after iteration {best[0]}, saved in best_model/")


class EveryNIterations(IterationCallback, EventCallback):
    """Calls another callback's _on_step after every n iterations.

    As in stable-baselines3's event callbacks, only ``_on_step`` and the method for the start of training are called.

    Args:
        n: Number of iterations, each of ``n_steps`` times ``n_envs`` agent tokens or environment steps.
        callback: Id of the other callback, or ``{id: ..., args: {...}}``.
        build_callback: Builds the other callback; provided by the toolkit.
    """

    def __init__(
        self, n: Count, callback: str | Mapping[str, Any], build_callback: Callable[..., BaseCallback] | None = None
    ) -> None:
        chosen = {"id": callback} if isinstance(callback, str) else callback
        EventCallback.__init__(self, None if build_callback is None else build_callback(**chosen))
        self._every, self._last = n, 0

    @classmethod
    def inner_callbacks(cls, args: Mapping[str, Any]) -> Iterator[Any]:
        yield args.get("callback")

    def _act(self) -> None:
        if self.iteration == self._last or self.iteration % self._every:
            return
        self._last = self.iteration
        if not self._on_event():
            self.stop(f"{type(self.callback).__name__} returned False after iteration {self.iteration}")


_ROLLOUT = "rollout/"
_REWARD = f"{_ROLLOUT}task_reward"


class EarlyStopping(IterationCallback):
    """Stops training when a metric of the val split has not improved for some evaluations.

    Args:
        metric: Metric key in ``val_split_metrics.jsonl``.
        patience: Number of consecutive evaluations without an improvement over the best value.
        mode: ``max`` if higher is better, ``min`` if lower is.
        evaluations: The run's results; provided by the toolkit.
    """

    def __init__(
        self,
        metric: Key,
        patience: Count = 3,
        mode: Mode = "max",
        evaluations: Sequence[EvaluationResult] = (),
    ) -> None:
        super().__init__()
        self._history = MetricHistory(evaluations, metric, mode, "callback 'early_stopping'")
        self._metric, self._patience = metric, patience

    def _on_training_start(self) -> None:
        self._history.check()

    def _on_rollout_start(self) -> None:
        best = self._history.best()
        if best is not None and best[2] >= self._patience:
            was_best = f"val {self._metric} was best after iteration {best[0]} ({best[1]:.4g})"
            self.stop(f"{was_best} and has not improved in the {best[2]} evaluations since")


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
        self._metric, self._run_folder, self._threshold = metric, run_folder, threshold
        self._is_of_rollouts = metric.startswith(_ROLLOUT)

    @classmethod
    def reads_rollouts(cls, args: Mapping[str, Any]) -> bool:
        return str(args.get("metric", _REWARD)).startswith(_ROLLOUT)

    def _on_training_start(self) -> None:
        if not self._is_of_rollouts:
            self._history.check()
        elif self._run_folder is not None:
            # A run that is resumed after the threshold was reached stops there too.
            for record in self._run_folder.read_jsonl(ROLLOUT_INFO_FILE):
                if record["iteration"] == self.iteration and (value := record.get(self._metric)) is not None:
                    self._stop_if_reached(self._metric, float(value))

    def _on_rollout_start(self) -> None:
        if not self._is_of_rollouts and (latest := self._history.latest()) is not None:
            self._stop_if_reached(f"val {self._metric}", latest[1])

    def _on_rollout_end(self) -> None:
        if not self._is_of_rollouts:
            return
        logged = self.logger.name_to_value
        if self._metric not in logged:
            known = sorted(key for key in logged if key.startswith(_ROLLOUT))
            hint = f"{nearest_hint(self._metric, known)} (they have: {', '.join(known)})"
            raise ConfigError(f"callback 'stop_on_reward_threshold': the rollouts have no {self._metric!r}{hint}")
        self._stop_if_reached(self._metric, float(logged[self._metric]))

    def _stop_if_reached(self, name: str, value: float) -> None:
        if self._history.reaches(value, self._threshold):
            self.stop(f"{name} is {value:.4g}, which reaches the threshold of {self._threshold:g}")
