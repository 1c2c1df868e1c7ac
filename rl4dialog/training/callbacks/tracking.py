"""What the algorithm and the callbacks log, written down an iteration at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from stable_baselines3.common.logger import Figure, HParam, Image, Video
from stable_baselines3.common.utils import safe_mean

from rl4dialog.runs.progress import Progress
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training.callbacks.base import IterationCallback
from rl4dialog.training.memory import peak_mib

Told = Callable[[Mapping[str, Any], float], tuple[dict[str, float], dict[str, str]]]
_MEDIA = (Figure, HParam, Image, Video)  # no numbers, so nothing for a file of records


class TrackingCallback(IterationCallback):
    """Writes what is logged, an iteration at a time, and moves the progress.

    It comes before the other callbacks, which find the last iteration written down; what they log is written by its
    :attr:`last`, which comes after them.

    Args:
        tracker: Of the run.
        progress: Over its iterations.
        told: From what a rollout logged, and the seconds of its iteration: what else is logged, and what is shown.
    """

    def __init__(self, tracker: Tracker, progress: Progress, told: Told) -> None:
        super().__init__()
        self._tracker, self._progress, self._told = tracker, progress, told
        self._started = time.perf_counter()
        self._rollout: dict[str, float] | None = None  # of the iteration whose training is not written down yet
        self._written: dict[str, Any] = {}  # of the training before
        self.last = _AfterOthers(self)

    def write_rollout(self) -> None:
        """Write what was logged from the start of a rollout to its end."""
        values = self.logger.name_to_value
        logged = {
            name: value
            for name, value in values.items()
            if not isinstance(value, _MEDIA) and (name not in self._written or value is not self._written[name])
        }
        logged["rollout/ep_rew_mean"] = safe_mean([episode["r"] for episode in self.model.ep_info_buffer or []])
        self._tracker.log_rollout_infos({"iteration": self.iteration, **logged})
        self._rollout, self._rollout_ended = logged, time.perf_counter()

    def begin(self) -> None:
        """Show what is known of the last iteration, and begin to time the next one."""
        self._tracker.show()
        self._started = time.perf_counter()

    def _on_rollout_start(self) -> None:
        self._write_training()

    def _on_training_end(self) -> None:
        self._write_training()

    def _write_training(self) -> None:
        """What ``train()`` logged after the last rollout; stable-baselines3 would only dump it after the next."""
        if self._rollout is None:
            return
        rollout, self._rollout = self._rollout, None
        now = time.perf_counter()
        self._written = {k: v for k, v in self.logger.name_to_value.items() if k.startswith("train/")}
        rates, shown = self._told(rollout, now - self._started)
        logged = {
            **self._written,
            "time/update_s": now - self._rollout_ended,
            **rates,
            "memory/peak_mib": peak_mib(self.model.device),
        }
        self._tracker.log_training_infos({"iteration": self.iteration, **logged})
        self._progress.advance(shown=shown)


class _AfterOthers(IterationCallback):
    """The part of tracking that waits for what the other callbacks do, such as an evaluation."""

    def __init__(self, tracking: TrackingCallback) -> None:
        super().__init__()
        self._tracking = tracking

    def _on_rollout_start(self) -> None:
        self._tracking.begin()

    def _on_rollout_end(self) -> None:
        self._tracking.write_rollout()
