"""Checkpoints during training: at a fixed interval, for the best metric value, and on a signal."""

from __future__ import annotations

import logging
import math
from typing import Any

from rl4dialog.core.errors import RunFolderError, RunInterrupted
from rl4dialog.functional.distributed import all_reduce_max, n_processes
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.callbacks.base import IterationCallback
from rl4dialog.training.callbacks.history import MetricHistory
from rl4dialog.training.checkpoint import CheckpointStore, describe
from rl4dialog.training.interruption import StopSignals
from rl4dialog.training.trainee import Trainee

_logger = logging.getLogger(__name__)


class CheckpointCallback(IterationCallback):
    """Saves between iterations, and when a signal arrives.

    In the middle of a rollout it saves the state at the start of the rollout, since no weights have changed.

    If a checkpoint cannot be written, a warning is logged and the run continues with the existing ones.

    Args:
        store: The run's checkpoints.
        tracker: The run's tracker; ``None`` in a process that does not write.
        signals: Signals that stop the run. With several processes, all stop between iterations if one received a
            signal.
        trainee: The trainee to save.
        every: Iterations between checkpoints. ``None`` saves only after the last iteration and on a signal; the last
            iteration is always saved.
        keep_best: Values of the metric that selects the best checkpoint, if it is to be kept.
    """

    def __init__(
        self,
        store: CheckpointStore,
        tracker: Tracker | None,
        signals: StopSignals,
        trainee: Trainee,
        every: int | None,
        keep_best: MetricHistory | None = None,
    ) -> None:
        super().__init__()
        self._store, self._tracker, self._signals = store, tracker, signals
        self._trainee, self._every, self._keep_best = trainee, every, keep_best
        self._state: dict[str, Any] = {}
        self._in_rollout = False

    def evaluated(self) -> None:
        """Keep the current iteration if its evaluation is the best so far. All processes must call this."""
        if self._keep_best is None:
            return
        latest, best = self._keep_best.latest(), self._keep_best.best(skip_start=True)
        if latest is not None and not math.isfinite(latest[1]):  # for example because a judge failed
            _logger.warning(
                "iteration %d cannot be the best: its evaluation has no %s", self.iteration, self._keep_best.metric
            )
        elif best is not None and best[0] == self.iteration:
            is_saved = self._store.has(self.iteration) or self._save()
            if is_saved and self._tracker is not None:
                self._mark_best(best[1])

    def stop_if_asked(self) -> None:
        """Save and stop if any process has received a signal. All processes must call this, between iterations.

        Raises:
            RunInterrupted: If a signal was received.
        """
        if all_reduce_max(int(self._signals.received is not None)):
            self._stop()

    def _mark_best(self, value: float) -> None:
        assert self._keep_best is not None
        try:
            self._store.mark_best(self.iteration, self._keep_best.metric, value)
        except RunFolderError as error:
            _logger.warning("iteration %d could not be marked as the best: %s", self.iteration, error)

    def _on_training_start(self) -> None:
        # A resumed run may compute metrics that were not recorded before.
        if self._keep_best is not None and not self.iteration:
            self._keep_best.check()

    def _on_rollout_start(self) -> None:
        self._state = {}
        if self._trainee.stops_within_iteration:
            self._capture()
        self._in_rollout = True
        if self._every is not None and self.iteration % self._every == 0 and not self._store.has(self.iteration):
            self._save()
        self.stop_if_asked()

    def _on_step(self) -> bool:
        if self._signals.received is not None and n_processes() == 1 and self._trainee.stops_within_iteration:
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
            self._state["tracker_run_ids"] = self._tracker.run_ids

    def _save(self) -> bool:
        if not self._state:
            self._capture()
        try:
            self._store.save(self._state, self._trainee.save_state)
        except RunFolderError as error:
            _logger.warning("the checkpoint of iteration %d could not be saved: %s", self._state["iteration"], error)
            return False
        return True

    def _stop(self) -> None:
        if self._trainee.is_within_iteration or not self._state:
            self._capture()
        state = self._state
        is_saved = (not state.get("is_unfinished") and self._store.has(state["iteration"])) or self._save()
        saved = "progress since the last checkpoint is lost" if not is_saved else "saved"
        raise RunInterrupted(f"stopped by {self._signals.received or 'a signal'} {describe(state)}; {saved}")
