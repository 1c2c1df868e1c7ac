"""Schedules of the learning rate and the clip ranges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Required

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from rl4dialog.core.arguments import LearningRate, NonNegative, Positive
from rl4dialog.core.errors import ConfigError

SCHEDULED = ("learning_rate", "clip_range", "clip_range_high", "clip_range_vf")  # arguments that can have a schedule


class ScheduleSettings(TypedDict, total=False):
    """A schedule over the iterations of a run."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # type: ignore[misc]

    start: Required[Positive]  # value in the beginning, or after the warmup; the highest one
    end: NonNegative  # value of the last iteration; 0 by default; not for constant
    schedule: Literal["linear", "cosine", "constant"]  # shape of the curve from start to end; linear by default
    # Fraction of the iterations in which the value first rises linearly from 0, not in a run of one iteration; only for
    # the learning rate.
    warmup: Annotated[float, Field(ge=0, lt=1)]


class RateSettings(ScheduleSettings, total=False):
    """A schedule of the learning rate."""

    start: Required[LearningRate]  # type: ignore[misc]


def as_schedule(value: Any, name: str) -> Any:
    """Settings as a function of the remaining progress, from 1 to 0; numbers and functions are returned as is."""
    if not isinstance(value, Mapping):
        return value
    where, kind, warmup = f"alg.args.{name}", value.get("schedule", "linear"), value.get("warmup", 0.0)
    start, end = float(value["start"]), float(value.get("end", 0.0))
    if kind == "constant" and "end" in value:
        raise ConfigError(f"{where}.end has no effect with schedule: constant; remove it")
    if end > start:
        raise ConfigError(f"{where}.end is {end:g}, above start = {start:g}, but it must not grow; swap them")
    if name != "learning_rate" and (warmup or (end == 0 and kind != "constant")):
        cause = "warmup: it would begin at 0" if warmup else "end: 0"
        raise ConfigError(f"{where} cannot have {cause}, where every ratio is clipped; use a positive range")
    return scheduled(start, end, kind, warmup)


def scheduled(start: float, end: float, kind: str, warmup: float) -> Callable[[float], float]:
    """Build a schedule; see :class:`ScheduleSettings`. Cosine: Loshchilov and Hutter 2017, arXiv 1608.03983."""

    def value(progress_remaining: float) -> float:
        done = 1 - progress_remaining
        if 0 < done < warmup:
            return start * done / warmup
        done = max(done - warmup, 0) / (1 - warmup)
        if kind == "constant":
            return start
        left = 1 - done if kind == "linear" else (1 + math.cos(math.pi * done)) / 2
        return end + (start - end) * left

    return value


class IterationSchedules:
    """Mixin for algorithms that read their schedules once per iteration, after its rollout."""

    @property
    def timesteps_per_iteration(self) -> int:
        """Timesteps that an iteration counts as."""
        raise NotImplementedError

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        """Keep the only iteration of a run at the start of its schedules; stable-baselines3 would read their end."""
        done = num_timesteps if total_timesteps > self.timesteps_per_iteration else 0
        super()._update_current_progress_remaining(done, total_timesteps)  # type: ignore[misc]
