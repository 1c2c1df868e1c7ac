"""The text at the beginning of a prompt: the speaker's persona, and the goal of its next reply if it has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_MARK = "goal : "


def persona_in(meta_data: Mapping[str, Any], key: str = "persona") -> str | None:
    """The persona in the meta data of a sample, which is a text or a list of sentences; ``None`` without the key."""
    found = meta_data.get(key)
    return found if found is None or isinstance(found, str) else " ".join(map(str, found))


def goal_in(meta_data: Mapping[str, Any]) -> str | None:
    """The goal of a sample's reply, if it has one. The goal of the partner, in other tasks, is not a text."""
    goal = meta_data.get("goal")
    return goal if isinstance(goal, str) else None


def opening_in(meta_data: Mapping[str, Any]) -> str | None:
    """The text at the beginning of a sample's prompt: the persona, with the goal of the reply if it has one."""
    persona, goal = persona_in(meta_data), goal_in(meta_data)
    return persona if goal is None else with_goal([persona] if persona else [], goal)


def with_goal(persona: Sequence[str], goal: str) -> str:
    """Return the text at the beginning of a prompt: the speaker's persona, and the goal of its next reply."""
    return " ".join([*persona, f"{_MARK}{goal}"])


def without_goal(text: str) -> str:
    """Return the persona of a text of :func:`with_goal`."""
    persona, mark, _ = text.rpartition(_MARK)
    return persona.rstrip() if mark else text
