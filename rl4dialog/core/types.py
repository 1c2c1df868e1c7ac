"""The data that passes between layers: samples, turns, dialogues and weighted rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeGuard


@dataclass
class Sample:
    """One prompt with its reference replies.

    Attributes:
        id: Unique within its split.
        prompt_or_input_text: What the model reads.
        references: Replies that a person gave, without any end-of-turn marker.
        meta_data: Labels and anything else that a reward or a metric wants to know. Dialogue pools put the
            plain utterances of the prompt under ``history`` (oldest first).
    """

    id: str | int
    prompt_or_input_text: str
    references: list[str]
    meta_data: dict[str, Any] | None = None


@dataclass(frozen=True)
class Turn:
    """One utterance of a dialogue, with the labels that its dataset gives it."""

    text: str
    speaker: int
    act: int | None = None
    emotion: int | None = None


@dataclass(frozen=True)
class Dialogue:
    """A conversation: its turns in order, and what holds for the whole of it."""

    id: str
    turns: tuple[Turn, ...]
    topic: str | None = None
    meta_data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RewardPart:
    """One term of a weighted sum of rewards.

    Attributes:
        name: Under which the part is logged.
        weight: Factor of this part in the sum: a number, or one for each iteration (see
            :mod:`rl4dialog.rewards.schedules`).
        function: A :class:`~rl4dialog.core.protocols.RewardFunction` (called in the env workers); a
            :class:`~rl4dialog.core.protocols.BatchedRewardFunction` (called in the main process), or an
            :class:`~rl4dialog.rewards.async_reward.AsyncReward` (awaited there).
        clip: The least and the most that the part pays at once, before the weight: on a token, or for a whole reply if
            it is paid at the end.
    """

    name: str
    weight: float | Callable[[int], float]
    function: Any
    clip: tuple[float, float] | None = None

    def weight_at(self, iteration: int) -> float:
        """The weight in an iteration, counted from 1."""
        return self.weight(iteration) if callable(self.weight) else self.weight

    def term(self, value: float, iteration: int = 1) -> float:
        """What a value of this part adds to the sum: clipped, then weighted. NaN stays NaN."""
        if self.clip is not None:
            value = min(max(value, self.clip[0]), self.clip[1])
        return self.weight_at(iteration) * value


def clip_bounds(value: Any) -> tuple[float, float]:
    """Bounds of a ``clip``: ``2`` is from -2 to 2, and ``[0, 1]`` from 0 to 1.

    Raises:
        ValueError: If it is neither a positive number nor two numbers in ascending order.
    """
    if is_number(value) and value > 0:
        return -float(value), float(value)
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_number, value)) and value[0] < value[1]:
        return float(value[0]), float(value[1])
    raise ValueError(f"must be a positive number or [lowest, highest], not {value!r}")


def is_number(value: Any) -> bool:
    """Whether it is a number, and not a truth value, which Python counts among them."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole_number(value: Any, at_least: int) -> TypeGuard[int]:
    """Whether it is an ``int`` of at least that, and not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
