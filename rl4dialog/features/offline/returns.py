"""Prompts that begin with a return, to which the Decision Transformer conditions its replies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Dialogue, Prompt, PromptTurn, Sample, system_text
from rl4dialog.data.dialogue_format import EOU_TOKEN, DialogueFormat
from rl4dialog.data.pool import RewrittenPool, TextGenPool
from rl4dialog.features.offline.config import OfflineConfig
from rl4dialog.text.prompts import with_turns
from rl4dialog.training.building.policy import algorithm_class, all_arguments

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

    def asked(self, prompt: str, dialogue_format: DialogueFormat | None, turn_end: str | None) -> str:
        """Let a prompt ask for the target return, unless it already begins with a return."""
        return prompt if begins_with_return(prompt) else self.prompt(with_turns(prompt, turn_end), dialogue_format)

    def asking(self, pool: TextGenPool) -> TextGenPool:
        """The pool, whose prompts ask for the target return."""

        def asking(sample: Sample) -> Sample:
            text = self.asked(sample.prompt_or_input_text, pool.dialogue_format, pool.end_of_turn)
            return replace(sample, prompt_or_input_text=text)

        return RewrittenPool(pool, asking)  # type: ignore[abstract]

    def dialogue(self, dialogue: Dialogue, prompt: str, dialogue_format: DialogueFormat | None) -> Dialogue:
        """Put the return of a logged conversation in front of its prompt."""
        value = sum(turn.reward + sum(turn.token_rewards or ()) for turn in dialogue.said)
        return replace(dialogue, prompt=self.prompt(prompt, dialogue_format, value))

    @property
    def note(self) -> str:
        return f"Prompts begin with the return to achieve, such as {self.text(self.target)!r}."


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


def with_own_returns(logged: Iterable[Dialogue], prefix: ReturnPrefix | None, pool: TextGenPool) -> Iterator[Dialogue]:
    """Yield logged conversations behind their returns."""
    if prefix is None:
        yield from logged
        return
    for each in logged:
        assert each.prompt is not None
        yield prefix.dialogue(each, with_turns(each.prompt, pool.end_of_turn), pool.dialogue_format)


def return_prefix(config: OfflineConfig) -> ReturnPrefix | None:
    """The returns of a run's prompts; ``None`` if its algorithm does not condition on them."""
    if not algorithm_class(config).reads_returns:
        return None
    args = all_arguments(config)
    return ReturnPrefix(args["target_return"], args["decimals"])
