"""Checkpoints during training: at a fixed interval, for the best metric value, and on a signal."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rl4dialog.core.errors import ConfigError, RunFolderError, RunInterrupted, nearest_hint
from rl4dialog.functional.distributed import all_gather_object, all_reduce_max, n_processes
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.callbacks.base import IterationCallback
from rl4dialog.training.callbacks.history import SPLIT, EvaluationResult
from rl4dialog.training.checkpoint import CheckpointStore
from rl4dialog.training.interruption import StopSignals
from rl4dialog.training.trainee import Resumable

_logger = logging.getLogger(__name__)


class CheckpointCallback(IterationCallback):
    """Saves between iterations. If a signal stops a rollout, it saves the state at the start of that rollout.

    If a checkpoint cannot be written, a warning is logged and the run continues with the existing ones.

    Args:
        store: The run's checkpoints.
        tracker: The run's tracker; ``None`` in a process that does not write.
        signals: Signals that stop the run. With several processes, all stop between iterations if one received a
            signal.
        trainee: The trainee to save.
        every: Iterations between checkpoints. ``None`` saves only after the last iteration and on a signal; the last
            iteration is always saved.
        keep_best: Metric of the val split that selects the best checkpoint, and ``max`` or ``min``.
        evaluations: The run's results.
    """

    def __init__(
        self,
        store: CheckpointStore,
        tracker: Tracker | None,
        signals: StopSignals,
        trainee: Resumable,
        every: int | None,
        keep_best: tuple[str, str] | None = None,
        evaluations: Sequence[EvaluationResult] = (),
    ) -> None:
        super().__init__()
        self._store, self._tracker, self._signals = store, tracker, signals
        self._trainee, self._every, self._keep_best = trainee, every, keep_best
        self._evaluations = evaluations
        self._state: dict[str, Any] = {}
        self._in_rollout = False

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Keep the current iteration if it is the best so far. All processes must call this.

        Args:
            metrics: Metrics of the val split; only the main process's values are used.
        """
        if self._keep_best is None:
            return
        name, mode = self._keep_best
        value = metrics.get(name, math.nan)
        if all_gather_object(self._tracker is not None and self._is_best(name, mode, value))[0]:
            is_saved = self._store.has(self.iteration) or self._save()
            if is_saved and self._tracker is not None:
                self._mark_best(name, value)

    def stop_if_asked(self) -> None:
        """Save and stop if any process has received a signal. All processes must call this, between iterations.

        Raises:
            RunInterrupted: If a signal was received.
        """
        if all_reduce_max(int(self._signals.received is not None)):
            self._stop()

    def _is_best(self, name: str, mode: str, value: float) -> bool:
        if not math.isfinite(value):  # for example because a judge failed
            _logger.warning("iteration %d cannot be the best, as its evaluation has no %s", self.iteration, name)
            return False
        best = self._store.best
        if best is None or best["metric"] != name or best["value"] is None:
            return True
        return bool(value > best["value"] if mode == "max" else value < best["value"])

    def _mark_best(self, name: str, value: float) -> None:
        try:
            self._store.mark_best(self.iteration, name, value)
        except RunFolderError as error:
            _logger.warning("iteration %d is not marked as the best: %s", self.iteration, error)

    def _on_training_start(self) -> None:
        # A resumed run may compute metrics that were not recorded before.
        if self._keep_best is None or self.iteration:
            return
        name = self._keep_best[0]
        known = sorted({key for result in self._evaluations if result.split == SPLIT for key in result.metrics})
        if known and name not in known:
            raise ConfigError(
                f"train_evaluation.keep_best: no metric {name!r}{nearest_hint(name, known)} "
                f"(the val split has {', '.join(known)})"
            )

    def _on_rollout_start(self) -> None:
        self._capture()
        self._in_rollout = True
        if self._every is not None and self.iteration % self._every == 0 and not self._store.has(self.iteration):
            self._save()
        self.stop_if_asked()

    def _on_step(self) -> bool:
        algorithm: Any = self.model
        if self._signals.received is not None and n_processes() == 1 and algorithm.discards_rollouts:
            self._stop()
        return True

    def _on_rollout_end(self) -> None:
        self._in_rollout = False

    def _on_training_end(self) -> None:
        if not self._in_rollout:  # a rollout that a callback stopped is discarded
            self._capture()
        # Always save here: the following evaluations take long and may be interrupted.
        if not self._store.has(self.iteration):
            self._save()
        self.stop_if_asked()

    def _capture(self) -> None:
        self._state = self._trainee.capture_state()
        if self._tracker is not None:
            self._state["log_sizes"] = self._tracker.run_folder.log_sizes()
            self._state["wandb_run_id"] = self._tracker.wandb_run_id

    def _save(self) -> bool:
        try:
            self._store.save(self._state, self._trainee.save_state)
        except RunFolderError as error:
            _logger.warning("no checkpoint of iteration %d: %s", self._state["iteration"], error)
            return False
        return True

    def _stop(self) -> None:
        iteration = self._state["iteration"]
        is_saved = self._store.has(iteration) or self._save()
        where = "what was done since the last checkpoint is lost" if not is_saved else "saved"
        raise RunInterrupted(f"stopped by {self._signals.received or 'a signal'} after iteration {iteration}; {where}")
