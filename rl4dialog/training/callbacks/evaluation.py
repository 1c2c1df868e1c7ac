"""Evaluation during training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rl4dialog.training.callbacks.base import IterationCallback


class EvaluationCallback(IterationCallback):
    """Calls a function after every ``every`` iterations and after the last one, when their training is finished."""

    def __init__(self, on_iteration: Callable[[int], Any], every: int) -> None:
        super().__init__()
        self._on_iteration, self._every = on_iteration, every
        self._last = 0

    def _on_rollout_start(self) -> None:
        n_done = self.iteration
        if n_done and n_done % self._every == 0:
            self._last = n_done
            self._on_iteration(n_done)

    def _on_training_end(self) -> None:
        if self._last != self.iteration:
            self._on_iteration(self.iteration)
