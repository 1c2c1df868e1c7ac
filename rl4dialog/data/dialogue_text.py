"""Texts about a conversation: its opening, with persona and goal or return, and the text that reward models read.

In the latter, each utterance is a line that starts with its speaker: ``User: hello``. The agent is the ``Assistant``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Prompt, PromptTurn, Turn, given_turns, system_text
from rl4dialog.data.dialogue_format import EOU_TOKEN, DialogueFormat

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
_SPEAKERS = {PARTNER: "User", AGENT: "Assistant"}


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


_RETURN = re.compile(r"return -?\d+(\.\d+)?(?=\s|<EOU>|$)")


@dataclass(frozen=True)
class ReturnPrefix:
    """How returns are written, and which one evaluations ask for."""

    target: float  # return that the prompts of evaluations, chats and files begin with
    decimals: int = 0  # decimals of returns

    characters = "return -0123456789."  # all characters of a return, for tokenizers that are trained on the texts

    def text(self, value: float) -> str:
        """Write a return, such as ``return -2``."""
        rounded = round(float(value), self.decimals) + 0.0  # -0.0 becomes 0.0
        return f"return {rounded:.{self.decimals}f}"

    def prompt(self, prompt: str, dialogue_format: DialogueFormat | None, value: float | None = None) -> Prompt:
        """Put a return in front of a prompt: as an utterance, a system message, or a first line of plain texts.

        A persona comes after it, on the next line.
        """
        text, persona = self.text(self.target if value is None else value), system_text(prompt)
        if persona:
            text = f"{text}\n{persona}"
        if not isinstance(prompt, Prompt):
            prompt = Prompt([PromptTurn(prompt, "")], agent_opening=None)
        if dialogue_format is not None and dialogue_format.name == "chat_template":
            return _chat_prompt(prompt, dialogue_format, text, persona)
        if len(prompt.opening) > 3:
            raise DataError(f"a prompt begins with several texts, so it has no place for a return: {prompt[:80]!r}")
        marker, alone = ("\n", "\n") if dialogue_format is None else (EOU_TOKEN, f" {EOU_TOKEN}")
        opening, agents = ("", text, marker), ("", text, alone)
        agent_opening = None if prompt.agent_opening is None else agents
        return Prompt(prompt.turns, opening if prompt.turns else agents, opening, agent_opening, prompt.reply)

    def dialogue(self, dialogue: Dialogue, prompt: str, dialogue_format: DialogueFormat | None) -> Dialogue:
        """Put the return of a logged conversation in front of its prompt."""
        value = sum(turn.reward + sum(turn.token_rewards or ()) for turn in dialogue.said)
        return replace(dialogue, prompt=self.prompt(prompt, dialogue_format, value))


def _chat_prompt(prompt: Prompt, dialogue_format: DialogueFormat, text: str, persona: str) -> Prompt:
    said = [turn.text for turn in prompt.turns]
    if dialogue_format.prompt(said, persona or None) != prompt:
        cure = "use messages or history instead of a finished prompt"
        raise DataError(f"a return needs a prompt whose messages are known, not {prompt[:80]!r}; {cure}")
    found = dialogue_format.prompt(said, text)
    return Prompt(found.turns, found.opening, found.later_opening, found.agent_opening, prompt.reply)


def begins_with_return(prompt: str) -> bool:
    """Whether a prompt begins with a return, in its opening or as a text."""
    return _RETURN.match(system_text(prompt) if isinstance(prompt, Prompt) else prompt) is not None
