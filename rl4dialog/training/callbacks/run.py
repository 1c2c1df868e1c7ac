"""Callbacks of every run: evaluation, records, recovery from dead workers, and checkpoints."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from stable_baselines3.common.logger import Figure, HParam, Image, Video
from stable_baselines3.common.utils import safe_mean

from rl4dialog.core.errors import RunFolderError, RunInterrupted
from rl4dialog.data.conversations.record import logged_record
from rl4dialog.functional.distributed import all_gather_object, all_reduce_max, barrier, n_processes
from rl4dialog.runs.progress import Progress
from rl4dialog.runs.run_folder import CONVERSATIONS_FILE
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.callbacks.base import IterationCallback, MetricHistory
from rl4dialog.training.checkpoint import CheckpointStore, describe
from rl4dialog.training.interruption import StopSignals
from rl4dialog.training.memory import peak_mib
from rl4dialog.training.trainee import Trainee


class EvaluationCallback(IterationCallback):
    """Calls a function after every ``every`` iterations and after the last one, when their training is finished."""

    def __init__(self, on_iteration: Callable[[int], Any], every: int) -> None:
        super().__init__()
        self._on_iteration, self._every, self._last = on_iteration, every, 0

    def _on_rollout_start(self) -> None:
        if self.iteration and self.iteration % self._every == 0:
            self._last = self.iteration
            self._on_iteration(self.iteration)

    def _on_training_end(self) -> None:
        if self._last != self.iteration:
            self._on_iteration(self.iteration)


class ConversationLogCallback(IterationCallback):
    """Appends the conversations of each rollout, of all processes in order, to ``conversations.jsonl.gz``."""

    def __init__(self, tracker: Tracker | None) -> None:
        super().__init__()
        self._tracker = tracker

    def _on_rollout_end(self) -> None:
        found = [dialogue for each in all_gather_object(self.model.collector.dialogues) for dialogue in each]
        if self._tracker is not None:
            now = self.iteration
            records = (
                {"iteration": now, "sample_id": each.id, **logged_record(replace(each, id=f"{now}_{number}"))}
                for number, each in enumerate(found)
            )
            self._tracker.run_folder.append_compressed(CONVERSATIONS_FILE, records)


Derive = Callable[[Mapping[str, Any], float], tuple[dict[str, float], dict[str, str]]]
_MEDIA = (Figure, HParam, Image, Video)  # not numbers, so not recorded


class TrackingCallback(IterationCallback):
    """Writes logged values before other callbacks act, which find them recorded; :attr:`last` writes what these log."""

    def __init__(self, tracker: Tracker, progress: Progress, derive: Derive) -> None:
        super().__init__()
        self._tracker, self._progress, self._derive = tracker, progress, derive
        self._started = time.perf_counter()
        self._rollout: dict[str, float] | None = None  # of the iteration whose training is not recorded yet
        self._written: dict[str, Any] = {}  # of the previous training
        self.last = _AfterOthers(self)

    def write_rollout(self) -> None:
        values, old = self.logger.name_to_value.items(), self._written
        logged = {k: v for k, v in values if not isinstance(v, _MEDIA) and (k not in old or v is not old[k])}
        logged["rollout/ep_rew_mean"] = safe_mean([episode["r"] for episode in self.model.ep_info_buffer or []])
        self._tracker.log_rollout_infos({"iteration": self.iteration, **logged})
        self._rollout, self._rollout_ended = logged, time.perf_counter()
        self._progress.enter("update")

    def begin(self) -> None:
        """Display the last iteration, and start timing the next one."""
        self._tracker.show()
        self._progress.enter("rollout")
        self._started = time.perf_counter()

    def _act(self) -> None:
        """Write the values that ``train()`` logged; stable-baselines3 would dump them only after the next rollout."""
        if self._rollout is None:
            return
        rollout, self._rollout = self._rollout, None
        now = time.perf_counter()
        self._written = {k: v for k, v in self.logger.name_to_value.items() if k.startswith("train/")}
        rates, shown = self._derive(rollout, now - self._started)
        measured = {"time/update_s": now - self._rollout_ended, **rates, "memory/peak_mib": peak_mib(self.model.device)}
        self._tracker.log_training_infos({"iteration": self.iteration, **self._written, **measured})
        self._progress.enter()
        self._progress.advance(shown=shown)


class _AfterOthers(IterationCallback):
    """The part of tracking that runs after the other callbacks, such as an evaluation."""

    def __init__(self, tracking: TrackingCallback) -> None:
        super().__init__()
        self._tracking = tracking

    def _on_rollout_start(self) -> None:
        self._tracking.begin()

    def _on_rollout_end(self) -> None:
        self._tracking.write_rollout()


_logger = logging.getLogger(__name__)


class CheckpointCallback(IterationCallback):
    """Saves between iterations, and a rollout's start when a signal arrives; failures are warnings."""

    def __init__(
        self,
        store: CheckpointStore,
        tracker: Tracker | None,
        signals: StopSignals,
        trainee: Trainee,
        every: int | None,
        keep_best: MetricHistory | None = None,
        may_keep_start: bool = False,
    ) -> None:
        super().__init__()
        self._store, self._tracker, self._signals = store, tracker, signals
        self._trainee, self._every, self._keep_best = trainee, every, keep_best
        self._may_keep_start = may_keep_start
        self._state, self._in_rollout = dict[str, Any](), False

    def evaluated(self) -> None:
        """Keep the current iteration if its evaluation is the best so far. All processes must call this."""
        if self._keep_best is None:
            return
        metric, now = self._keep_best.metric, self.iteration
        latest, best = self._keep_best.latest(), self._keep_best.best(skip_start=not self._may_keep_start)
        if latest is not None and not math.isfinite(latest[1]):  # for example because a judge failed
            _logger.warning("iteration %d cannot be the best: its evaluation has no %s", now, metric)
        elif best is not None and best[0] == now:
            is_saved = self._store.has(now) or self._save()
            if not is_saved or self._tracker is None:
                return
            try:
                self._store.mark_best(now, metric, best[1])
            except RunFolderError as error:
                _logger.warning("iteration %d could not be marked as the best: %s", now, error)

    def stop_if_asked(self) -> None:
        """Save and stop if any process has received a signal. All processes must call this, between iterations."""
        if all_reduce_max(int(self._signals.received is not None)):
            self._stop()

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
        if self._may_keep_start and self.iteration == 0:
            self.evaluated()
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
        barrier()  # launchers end all processes soon after the first one that ends
        saved = "saved" if is_saved else "progress since the last checkpoint is lost"
        raise RunInterrupted(f"stopped by {self._signals.received or 'a signal'} {describe(state)}; {saved}")
