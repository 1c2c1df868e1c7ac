"""Base class of the toolkit's callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback


class IterationCallback(BaseCallback):
    """Acts between iterations, at the start of a rollout, when training on the last one is finished.

    Attributes:
        stop_reason: Reason for stopping the training; ``None`` if it has not been stopped.
    """

    stop_reason: str | None = None

    @classmethod
    def reads_rollouts(cls, args: Mapping[str, Any]) -> bool:
        """Whether the callback with these arguments reads rollouts, which supervised runs do not have."""
        return False

    @property
    def iteration(self) -> int:
        """Number of collected iterations."""
        algorithm: Any = self.model
        return int(algorithm.iteration)

    def stop(self, reason: str) -> None:
        """Stop before the next rollout. Stopping in ``_on_step`` would discard a partial rollout."""
        self.stop_reason = reason
        algorithm: Any = self.model
        algorithm.stop_requested = True

    def _on_step(self) -> bool:
        return True
