"""Data types shared by all layers: samples, turns, dialogues and weighted rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeGuard


@dataclass
class Sample:
    """One prompt with its reference replies.

    Attributes:
        id: Unique id within the split.
        prompt_or_input_text: The prompt.
        references: Human replies, without any end-of-turn marker.
        meta_data: Labels and other data for rewards and metrics. Dialogue pools store the plain utterances of the
            prompt under ``history`` (oldest first).
    """

    id: str | int
    prompt_or_input_text: str
    references: list[str]
    meta_data: dict[str, Any] | None = None


@dataclass(frozen=True)
class Turn:
    """One utterance of a dialogue, with the labels of its dataset."""

    text: str
    speaker: int
    act: int | None = None
    emotion: int | None = None


@dataclass(frozen=True)
class Dialogue:
    """A conversation: its turns in order, and properties of the whole conversation."""

    id: str
    turns: tuple[Turn, ...]
    topic: str | None = None
    meta_data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RewardPart:
    """One term of a weighted sum of rewards.

    Attributes:
        name: Name of the part in the logs.
        weight: Factor of this part in the sum: a number, or a function of the iteration (see
            :mod:`rl4dialog.rewards.schedules`).
        function: A :class:`~rl4dialog.core.protocols.RewardFunction` (called in the env workers), a
            :class:`~rl4dialog.core.protocols.BatchedRewardFunction` (called in the main process), or an
            :class:`~rl4dialog.rewards.async_reward.AsyncReward` (awaited in the main process).
        clip: Minimum and maximum of each payment before weighting: per token, or per reply if it is paid at the end.
    """

    name: str
    weight: float | Callable[[int], float]
    function: Any
    clip: tuple[float, float] | None = None

    def weight_at(self, iteration: int) -> float:
        """The weight in an iteration, counted from 1."""
        return self.weight(iteration) if callable(self.weight) else self.weight

    def term(self, value: float, iteration: int = 1) -> float:
        """Compute the term of a value in the sum: clipped, then weighted. NaN stays NaN."""
        if self.clip is not None:
            value = min(max(value, self.clip[0]), self.clip[1])
        return self.weight_at(iteration) * value


def clip_bounds(value: Any) -> tuple[float, float]:
    """Parse the bounds of a ``clip``: ``2`` means from -2 to 2, ``[0, 1]`` from 0 to 1.

    Raises:
        ValueError: If it is neither a positive number nor two numbers in ascending order.
    """
    if is_number(value) and value > 0:
        return -float(value), float(value)
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_number, value)) and value[0] < value[1]:
        return float(value[0]), float(value[1])
    raise ValueError(f"must be a positive number or [lowest, highest], not {value!r}")


def is_number(value: Any) -> bool:
    """Whether a value is a number, and not a ``bool``, which Python treats as an ``int``."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole_number(value: Any, at_least: int) -> TypeGuard[int]:
    """Whether a value is an ``int`` of at least ``at_least``, and not a ``bool``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
