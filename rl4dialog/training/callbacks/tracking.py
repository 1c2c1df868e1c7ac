"""Records the values logged by the algorithm and the callbacks, by iteration."""

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

Derive = Callable[[Mapping[str, Any], float], tuple[dict[str, float], dict[str, str]]]
_MEDIA = (Figure, HParam, Image, Video)  # not numbers, so not recorded


class TrackingCallback(IterationCallback):
    """Writes the logged values of each iteration and advances the progress bar.

    It runs before the other callbacks, so that they find the last iteration recorded. Values that they log are written
    by :attr:`last`, which runs after them.

    Args:
        tracker: The run's tracker.
        progress: Progress bar over the iterations.
        derive: Maps a rollout's logged values and the iteration's duration to further values to log and to display.
    """

    def __init__(self, tracker: Tracker, progress: Progress, derive: Derive) -> None:
        super().__init__()
        self._tracker, self._progress, self._derive = tracker, progress, derive
        self._started = time.perf_counter()
        self._rollout: dict[str, float] | None = None  # of the iteration whose training is not recorded yet
        self._written: dict[str, Any] = {}  # of the previous training
        self.last = _AfterOthers(self)

    def write_rollout(self) -> None:
        """Write the values logged during a rollout."""
        values = self.logger.name_to_value
        logged = {
            name: value
            for name, value in values.items()
            if not isinstance(value, _MEDIA) and (name not in self._written or value is not self._written[name])
        }
        logged["rollout/ep_rew_mean"] = safe_mean([episode["r"] for episode in self.model.ep_info_buffer or []])
        self._tracker.log_rollout_infos({"iteration": self.iteration, **logged})
        self._rollout, self._rollout_ended = logged, time.perf_counter()
        self._progress.enter("update")

    def begin(self) -> None:
        """Display the last iteration, and start timing the next one."""
        self._tracker.show()
        self._progress.enter("rollout")
        self._started = time.perf_counter()

    def _on_rollout_start(self) -> None:
        self._write_training()

    def _on_training_end(self) -> None:
        self._write_training()

    def _write_training(self) -> None:
        """Write the values that ``train()`` logged; stable-baselines3 would dump them only after the next rollout."""
        if self._rollout is None:
            return
        rollout, self._rollout = self._rollout, None
        now = time.perf_counter()
        self._written = {k: v for k, v in self.logger.name_to_value.items() if k.startswith("train/")}
        rates, shown = self._derive(rollout, now - self._started)
        logged = {
            **self._written,
            "time/update_s": now - self._rollout_ended,
            **rates,
            "memory/peak_mib": peak_mib(self.model.device),
        }
        self._tracker.log_training_infos({"iteration": self.iteration, **logged})
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
