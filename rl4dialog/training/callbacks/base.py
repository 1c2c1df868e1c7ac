"""What our callbacks add to stable-baselines3's."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.callbacks import BaseCallback


class IterationCallback(BaseCallback):
    """Acts between iterations: at the start of a rollout, the training on the last one is done.

    Attributes:
        stop_reason: Why it has ended the training; ``None`` while it has not.
    """

    stop_reason: str | None = None

    @property
    def iteration(self) -> int:
        """How many iterations have been collected."""
        algorithm: Any = self.model
        return int(algorithm.iteration)

    def stop(self, reason: str) -> None:
        """Let no further rollout begin. Between iterations nothing is lost; ``_on_step`` would end one half way."""
        self.stop_reason = reason
        algorithm: Any = self.model
        algorithm.stop_requested = True

    def _on_step(self) -> bool:
        return True
