"""Callbacks that periodically call another callback's ``_on_step``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stable_baselines3.common.callbacks import BaseCallback, EventCallback

from rl4dialog.core.arguments import Count
from rl4dialog.functional.distributed import n_processes
from rl4dialog.training.callbacks.base import IterationCallback

_Chosen = str | Mapping[str, Any]  # an id, or ``{id: ..., args: {...}}``
_Builder = Callable[..., BaseCallback]


class _EveryN(IterationCallback, EventCallback):
    """Calls a callback's ``_on_step`` at a fixed interval, when the training of an iteration is finished.

    As in stable-baselines3's event callbacks, only ``_on_step`` and the method for the start of training are called.
    """

    def __init__(self, callback: _Chosen, build_callback: _Builder | None) -> None:
        chosen = {"id": callback} if isinstance(callback, str) else callback
        EventCallback.__init__(self, None if build_callback is None else build_callback(**chosen))
        self._every = 1
        self._last = 0

    @classmethod
    def inner_callbacks(cls, args: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the inner callback given in the arguments."""
        yield args.get("callback")

    def _on_rollout_start(self) -> None:
        self._call_if_due()

    def _on_training_end(self) -> None:
        self._call_if_due()

    def _call_if_due(self) -> None:
        if self.iteration == self._last or self.iteration % self._every:
            return
        self._last = self.iteration
        if not self._on_event():
            self.stop(f"{type(self.callback).__name__} returned False after iteration {self.iteration}")


class EveryNIterations(_EveryN):
    """Calls another callback's _on_step after every n iterations.

    Args:
        n: Number of iterations.
        callback: Id of the other callback, or ``{id: ..., args: {...}}``.
        build_callback: Builds the other callback; provided by the toolkit.
    """

    def __init__(self, n: Count, callback: _Chosen, build_callback: _Builder | None = None) -> None:
        super().__init__(callback, build_callback)
        self._every = n


class EveryNTimesteps(_EveryN):
    """Calls another callback's _on_step after every n agent tokens or environment steps, in whole iterations.

    Args:
        n_timesteps: Number of agent tokens or environment steps, rounded up to whole iterations.
        callback: Id of the other callback, or ``{id: ..., args: {...}}``.
        build_callback: Builds the other callback; provided by the toolkit.
    """

    def __init__(
        self,
        n_timesteps: Count,
        callback: str | Mapping[str, Any],
        build_callback: Callable[..., BaseCallback] | None = None,
    ) -> None:
        super().__init__(callback, build_callback)
        self._n_timesteps = n_timesteps

    @classmethod
    def reads_rollouts(cls, args: Mapping[str, Any]) -> bool:
        return True

    def _on_training_start(self) -> None:
        super()._on_training_start()
        algorithm: Any = self.model
        self._every = math.ceil(self._n_timesteps / (algorithm.timesteps_per_iteration * n_processes()))
