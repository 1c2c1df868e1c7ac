"""Feedback of users, and files of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rl4dialog.core.feedback import Feedback, JudgedReply, append_feedback

HELLO = ("hello",)


def rating(reply: str, value: int, turns: Sequence[str] = HELLO, **other: Any) -> Feedback:
    return Feedback("rating", turns, [JudgedReply("m", reply)], rating=value, **other)


def preference(first: str, second: str, chosen: int, turns: Sequence[str] = HELLO, **other: Any) -> Feedback:
    return Feedback("preference", turns, [JudgedReply("m", text) for text in (first, second)], chosen=chosen, **other)


def correction(reply: str, better: str, turns: Sequence[str] = HELLO, **other: Any) -> Feedback:
    return Feedback("correction", turns, [JudgedReply("m", reply)], correction=better, **other)


def conversation_rating(reply: str, value: int, turns: Sequence[str] = HELLO, **other: Any) -> Feedback:
    return Feedback("conversation_rating", turns, [JudgedReply("m", reply)], rating=value, **other)


def write_feedback(path: Path, given: Iterable[Feedback]) -> Path:
    path.touch()
    for each in given:
        append_feedback(path, each)
    return path


def mixed_feedback(n: int = 12) -> list[Feedback]:
    """Three judgements in each of some conversations: a rating, a choice and a correction."""
    found = []
    for i in range(n):
        turns = (f"hello {i}", "hi", "how are you")
        found.append(rating(f"fine {i}", 1 if i % 2 else -1, turns))
        found.append(preference(f"good {i} and you?", "bad", i % 2, turns))
        found.append(correction("no", f"yes {i} sure", turns))
    return found
