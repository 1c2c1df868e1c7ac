"""Texts about a conversation: its opening, with persona and goal, and the text that reward models read.

In the latter, each utterance is a line that starts with its speaker: ``User: hello``. The agent is the ``Assistant``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl4dialog.core.types import AGENT, PARTNER, TOOL, Dialogue, Prompt, Turn, given_turns

_MARK = "goal : "


def persona_in(meta_data: Mapping[str, Any], key: str = "persona") -> str | None:
    """The persona in the meta data of a sample, which is a text or a list of sentences; ``None`` without the key."""
    found = meta_data.get(key)
    return found if found is None or isinstance(found, str) else " ".join(map(str, found))


def goal_in(meta_data: Mapping[str, Any]) -> str | None:
    """The goal of a sample's reply, if it has one. The goal of the partner, in other tasks, is not a text."""
    return goal if isinstance(goal := meta_data.get("goal"), str) else None


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


FORMAT = "speaker_lines"
"""Name of this format. It changes with every change of the texts, as a model reads only the texts it was trained on."""
_SPEAKERS = {PARTNER: "User", AGENT: "Assistant", TOOL: "Tool"}


def dialogue_text(dialogue: Dialogue, context_size: int | None = None) -> str:
    """The conversation up to its last utterance, with this number of utterances before it; ``None`` for all.

    The ``persona`` of its meta data, a text or a list of sentences, is the first line.
    """
    turns = dialogue.turns if context_size is None else dialogue.turns[-context_size - 1 :]
    persona = persona_in(dialogue.meta_data)
    opening = [f"Persona: {_on_one_line(persona)}"] if persona else []
    return "\n".join([*opening, *(f"{_SPEAKERS[turn.speaker]}: {_on_one_line(turn.text)}" for turn in turns)])


def reply_text(prompt: str, reply: str, meta_data: Mapping[str, Any] | None, context_size: int | None = None) -> str:
    """A reply and what was said before it, as :func:`replied` and :func:`dialogue_text`."""
    return dialogue_text(replied(prompt, reply, meta_data), context_size)


def replied(prompt: str, reply: str, meta_data: Mapping[str, Any] | None) -> Dialogue:
    """The conversation up to a reply.

    A prompt counts as one utterance if neither it nor the ``history`` of the meta data contains the utterances. A goal
    of the reply counts to the persona, as in feedback.
    """
    info = dict(meta_data or {})
    info["persona"] = opening_in(info)
    said = [turn.text for turn in prompt.turns] if isinstance(prompt, Prompt) else [prompt]
    return Dialogue("", (*given_turns(info.get("history", said)), Turn(reply, AGENT)), meta_data=info)


def _on_one_line(text: str) -> str:
    """The text without line breaks, so that no utterance can look like several."""
    return " ".join(text.split())
