"""Returns at the beginning of prompts, as text (Decision Transformer; Chen et al. 2021, arXiv 2106.01345).

A conversation begins with its return once, in the place of a persona, so that it stays when utterances are dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Dialogue, Prompt, PromptTurn, system_text
from rl4dialog.data.dialogue_format import EOU_TOKEN, DialogueFormat

_RETURN = re.compile(r"return -?\d+(\.\d+)?(?=\s|<EOU>|$)")


@dataclass(frozen=True)
class ReturnPrefix:
    """How returns are written, and which one evaluations ask for.

    Attributes:
        target: Return that the prompts of evaluations, chats and files begin with.
        decimals: Decimals of returns.
    """

    target: float
    decimals: int = 0

    characters = "return -0123456789."
    """All characters of a return, for tokenizers that are trained on the texts."""

    def text(self, value: float) -> str:
        """Write a return, such as ``return -2``."""
        rounded = round(float(value), self.decimals) + 0.0  # -0.0 becomes 0.0
        return f"return {rounded:.{self.decimals}f}"

    def prompt(self, prompt: str, dialogue_format: DialogueFormat | None, value: float | None = None) -> Prompt:
        """Put a return in front of a prompt: as an utterance, a system message, or a first line of plain texts.

        A persona comes after it, on the next line.

        Args:
            prompt: The prompt. It is one utterance unless it is a :class:`~rl4dialog.core.types.Prompt`.
            dialogue_format: Its format; ``None`` for plain texts.
            value: The return; by default the target.

        Raises:
            DataError: If the prompt has no known place for it.
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
        return Prompt(prompt.turns, opening if prompt.turns else agents, opening, agent_opening, prompt.reply_opening)

    def dialogue(self, dialogue: Dialogue, prompt: str, dialogue_format: DialogueFormat | None) -> Dialogue:
        """Put the return of a logged conversation in front of its prompt."""
        value = sum(turn.reward + sum(turn.token_rewards or ()) for turn in dialogue.said)
        return replace(dialogue, prompt=self.prompt(prompt, dialogue_format, value))


def _chat_prompt(prompt: Prompt, dialogue_format: DialogueFormat, text: str, persona: str) -> Prompt:
    said = [turn.text for turn in prompt.turns]
    if dialogue_format.prompt(said, persona or None) != prompt:
        raise DataError(
            f"a return cannot be put in front of a prompt whose messages are not known: {prompt[:80]!r}; use messages "
            f"or history instead of a finished prompt"
        )
    found = dialogue_format.prompt(said, text)
    return Prompt(found.turns, found.opening, found.later_opening, found.agent_opening, prompt.reply_opening)


def begins_with_return(prompt: str) -> bool:
    """Whether a prompt begins with a return, in its opening or as a text."""
    return _RETURN.match(system_text(prompt) if isinstance(prompt, Prompt) else prompt) is not None
