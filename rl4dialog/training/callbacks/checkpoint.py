"""Checkpoints during training: every so many iterations, the best by a metric, and when a signal stops the run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from rl4dialog.core.errors import ConfigError, RunFolderError, RunInterrupted, nearest_hint
from rl4dialog.functional.distributed import gather, largest, n_processes
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.callbacks.base import IterationCallback
from rl4dialog.training.checkpoint import CheckpointStore, capture_state
from rl4dialog.training.interruption import StopSignals

_logger = logging.getLogger(__name__)


class CheckpointCallback(IterationCallback):
    """Saves between iterations, and in the middle of a rollout as it was at its start: no weight has changed since.

    A checkpoint that cannot be written is a warning; the run goes on with those that are there.

    Args:
        store: Of the run.
        tracker: Of the run; ``None`` in a process that does not write.
        signals: That may stop the run. Of several processes, all stop between iterations if one received a signal.
        reference_hash: Of the model that the run began with.
        every: Iterations from one checkpoint to the next; ``None`` saves only when a signal stops the run.
        keep_best: Metric of the val split that marks the best checkpoint, and whether ``max`` or ``min`` is best.
    """

    def __init__(
        self,
        store: CheckpointStore,
        tracker: Tracker | None,
        signals: StopSignals,
        reference_hash: str,
        every: int | None,
        keep_best: tuple[str, str] | None = None,
    ) -> None:
        super().__init__()
        self._store, self._tracker, self._signals = store, tracker, signals
        self._reference_hash, self._every, self._keep_best = reference_hash, every, keep_best
        self._state: dict[str, Any] = {}
        self._in_rollout = False

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Keep the present iteration if it is the best so far; all processes must call it.

        Args:
            metrics: Of the val split; only the main process's count.

        Raises:
            ConfigError: If the metric is not among them.
        """
        if self._keep_best is None:
            return
        if gather(self._is_best(metrics) if self._tracker is not None else False)[0]:
            is_saved = self._store.has(self.iteration) or self._save()
            if is_saved and self._tracker is not None:
                name = self._keep_best[0]
                self._store.mark_best(self.iteration, name, metrics[name])

    def _is_best(self, metrics: Mapping[str, float]) -> bool:
        assert self._keep_best is not None
        name, mode = self._keep_best
        if name not in metrics:
            raise ConfigError(
                f"train_evaluation.keep_best: no metric {name!r}{nearest_hint(name, metrics)} "
                f"(the val split has {', '.join(metrics)})"
            )
        best = self._store.best
        if best is None or best["metric"] != name:
            return True
        return metrics[name] > best["value"] if mode == "max" else metrics[name] < best["value"]

    def _on_rollout_start(self) -> None:
        self._capture()
        self._in_rollout = True
        if self._every is not None and self.iteration % self._every == 0 and not self._store.has(self.iteration):
            self._save()
        if largest(int(self._signals.received is not None)):
            self._stop()

    def _on_step(self) -> bool:
        if self._signals.received is not None and n_processes() == 1:
            self._stop()
        return True

    def _on_rollout_end(self) -> None:
        self._in_rollout = False

    def _on_training_end(self) -> None:
        if not self._in_rollout:  # else a callback has stopped the run in it, and it counts for nothing
            self._capture()
        if self._every is not None and not self._store.has(self.iteration):
            self._save()

    def _capture(self) -> None:
        self._state = {**capture_state(self.model), "reference_hash": self._reference_hash}
        if self._tracker is not None:
            self._state["log_sizes"] = self._tracker.run_folder.log_sizes()
            self._state["wandb_run_id"] = self._tracker.wandb_run_id

    def _save(self) -> bool:
        try:
            self._store.save(self.model.policy, self._state)
        except RunFolderError as error:
            _logger.warning("no checkpoint of iteration %d: %s", self._state["iteration"], error)
            return False
        return True

    def _stop(self) -> None:
        iteration = self._state["iteration"]
        is_saved = self._store.has(iteration) or self._save()
        where = "what was done since the last checkpoint is lost" if not is_saved else "saved"
        raise RunInterrupted(f"stopped by {self._signals.received or 'a signal'} after iteration {iteration}; {where}")
