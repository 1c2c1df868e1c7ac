"""The data that passes between layers: samples, turns, dialogues and weighted rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


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
        weight: Factor of this part in the sum.
        function: A :class:`~rl4dialog.core.protocols.RewardFunction` (called in the env workers) or a
            :class:`~rl4dialog.core.protocols.BatchedRewardFunction` (called in the main process).
    """

    name: str
    weight: float
    function: Callable[..., Any]
