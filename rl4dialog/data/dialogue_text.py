"""The text of a conversation as reward models read it, in training and as rewards.

Each utterance is a line that starts with its speaker, such as ``User: hello``. The agent is the ``Assistant``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Prompt, Turn, given_turns
from rl4dialog.data.openings import opening_in, persona_in

FORMAT = "speaker_lines"
"""Name of this format. It changes with every change of the texts, as a model reads only the texts it was trained on."""
_SPEAKERS = {PARTNER: "User", AGENT: "Assistant"}


def dialogue_text(dialogue: Dialogue, context_size: int | None = None) -> str:
    """Write a conversation up to its last utterance.

    Args:
        dialogue: The conversation. The ``persona`` of its meta data, a text or a list of sentences, is the first line,
            if there is one.
        context_size: Number of utterances before the last one; ``None`` for all.
    """
    turns = dialogue.turns if context_size is None else dialogue.turns[-context_size - 1 :]
    persona = persona_in(dialogue.meta_data)
    opening = [f"Persona: {_on_one_line(persona)}"] if persona else []
    return "\n".join([*opening, *(f"{_SPEAKERS[turn.speaker]}: {_on_one_line(turn.text)}" for turn in turns)])


def reply_text(prompt: str, reply: str, meta_data: Mapping[str, Any] | None, context_size: int | None = None) -> str:
    """Write a reply and what was said before it.

    Args:
        prompt: As in :func:`replied`.
        reply: The reply.
        meta_data: As in :func:`replied`.
        context_size: As in :func:`dialogue_text`.
    """
    return dialogue_text(replied(prompt, reply, meta_data), context_size)


def replied(prompt: str, reply: str, meta_data: Mapping[str, Any] | None) -> Dialogue:
    """The conversation up to a reply.

    Args:
        prompt: The prompt, which counts as one utterance if neither it nor the meta data contain the utterances.
        reply: The reply.
        meta_data: The sample's, with ``history`` if it is a conversation. A goal of the reply counts to the persona, as
            in feedback.
    """
    info = dict(meta_data or {})
    info["persona"] = opening_in(info)
    said = [turn.text for turn in prompt.turns] if isinstance(prompt, Prompt) else [prompt]
    return Dialogue("", (*given_turns(info.get("history", said)), Turn(reply, AGENT)), meta_data=info)


def _on_one_line(text: str) -> str:
    """The text without line breaks, so that no utterance can look like several."""
    return " ".join(text.split())
