"""Combines the callbacks of a config."""

from __future__ import annotations

from collections.abc import Sequence

from stable_baselines3.common.callbacks import BaseCallback, CallbackList


class ConfiguredCallbacks(CallbackList):
    """Calls the callbacks in the config's order, and records which one stopped the training.

    Args:
        named: Id and callback of each.
    """

    def __init__(self, named: Sequence[tuple[str, BaseCallback]]) -> None:
        super().__init__([callback for _, callback in named])
        self._ids = [id for id, _ in named]
        self._refusals: dict[int, str] = {}

    @property
    def stopped_by(self) -> str | None:
        """Id and reason of the callback that stopped the training; ``None`` if none has."""
        for i, (id, callback) in enumerate(zip(self._ids, self.callbacks, strict=True)):
            reason = getattr(callback, "stop_reason", None) or self._refusals.get(i)
            if reason is not None:
                return f"{id}: {reason}"
        return None

    def _on_step(self) -> bool:
        for i, callback in enumerate(self.callbacks):
            if not callback.on_step():
                self._refusals[i] = "its _on_step returned False"
        return not self._refusals
