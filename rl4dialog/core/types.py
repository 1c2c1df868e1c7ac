"""Data types shared by all layers: samples, turns, dialogues and weighted rewards."""

from __future__ import annotations

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


def is_number(value: Any) -> bool:
    """Whether a value is a number, and not a ``bool``, which Python treats as an ``int``."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_whole_number(value: Any, at_least: int) -> TypeGuard[int]:
    """Whether a value is an ``int`` of at least ``at_least``, and not a ``bool``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
