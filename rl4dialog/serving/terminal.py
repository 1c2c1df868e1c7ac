"""A chat with a language model in the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.feedback import Feedback, JudgedReply, append_feedback
from rl4dialog.core.seeding import derive_seed
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.streaming import PartialReply
from rl4dialog.serving.chat_model import ChatModel, reward_in_words
from rl4dialog.serving.conversation import Conversation
from rl4dialog.serving.line_chat import LineChat, speaker, visible
from rl4dialog.serving.slash_commands import COMMANDS

_EMPTY = "(empty reply)"


class TerminalChat(LineChat):
    """A conversation between a user and a language model.

    Args:
        model: The model.
        read_line: Prompts for a line; raises EOFError at the end of the input.
        write: Prints text verbatim.
        show_reward: Whether to print the reward of each reply and its parts.
        seed: Random seed; the same lines then get the same replies.
        feedback: File to which ratings and corrections are appended.

    Attributes:
        conversation: The conversation so far.
    """

    def __init__(
        self,
        model: ChatModel,
        read_line: Callable[[str], str],
        write: Callable[[str], None],
        show_reward: bool = False,
        seed: int | None = None,
        feedback: Path = Path("feedback.jsonl"),
    ) -> None:
        self.conversation = Conversation(model.persona)
        super().__init__(read_line, write, COMMANDS)
        self._model = model
        self._show_reward, self._seed, self._feedback = show_reward, seed, feedback
        self._temperature: float | None = None
        self._beta: float | None = None
        self._n_asked = 0
        self._told: set[str] = set()

    def _greet(self) -> None:
        self._write(f"Chat with {self._model.name}. Type /help for commands, /quit or Ctrl-D to end.\n")
        if persona := self.conversation.persona:
            self._write(f"Persona, as in training: {visible(persona)}\n")

    # -- replies ------------------------------------------------------------------------------------------------------

    def _reply(self, text: str) -> None:
        prompt = self.conversation.prompt(text, self._model.dialogue_format)
        self._n_asked += 1
        seed = None if self._seed is None else derive_seed(self._seed, "chat", self._n_asked)
        kwargs = {} if self._temperature is None else {"temperature": self._temperature}
        self._write(speaker("model"))
        said, whole = self._print(self._model.stream(prompt, seed, self._beta, **kwargs))
        if not whole and not said:
            self._write("(stopped)\n")
            return
        self._write("\n" if whole else " (stopped)\n")
        meta_info = self.conversation.meta_info(text, self._model.dialogue_format)
        self.conversation.add(text, said)
        if self._show_reward:
            self._print_reward(prompt, said, meta_info)

    def _print(self, parts: Iterator[PartialReply]) -> tuple[str, bool]:
        """Print a reply while it is generated.

        Returns:
            The printed text, and whether it is the whole reply.
        """
        shown = ""
        try:
            for part in parts:
                # A decoder may revise earlier text; then nothing more is printed until the end.
                if part.text.startswith(shown):
                    self._write(visible(part.text[len(shown) :]))
                    shown = part.text
                elif part.finished:
                    self._write(f"\n{speaker('model')}{visible(part.text)}")
                    shown = part.text
        except KeyboardInterrupt:
            return shown, False
        self._write("" if shown else _EMPTY)
        return shown, True

    def _print_reward(self, prompt: str, reply: str, meta_info: dict[str, Any]) -> None:
        reward = reward_in_words(self._model, prompt, reply, meta_info, self._told)
        self._told.add(reward.missing)
        for text in filter(None, (reward.why, reward.text)):
            self._write(f"  {text}\n")

    # -- commands -----------------------------------------------------------------------------------------------------

    def _do_reset(self, argument: str) -> None:
        del argument
        self.conversation.reset()
        self._write("The conversation was reset.\n")

    def _do_undo(self, argument: str) -> None:
        del argument
        taken_back = self.conversation.undo()
        self._write(f"Undone: {taken_back[0]}\n" if taken_back else "There is nothing to undo.\n")

    def _do_persona(self, argument: str) -> None:
        self.conversation.persona = argument or None
        self._write(f"Persona: {argument}\n" if argument else "The model has no persona.\n")

    def _do_temperature(self, argument: str) -> None:
        temperature = _number(argument)
        if not 0 < temperature < math.inf:
            raise ConfigError(f"/temperature needs a number above 0, not {argument!r}")
        self._temperature = temperature
        samples = GenerationSettings.from_kwargs(self._model.generation_kwargs).do_sample
        greedy = "" if samples else "; it has no effect, because this model does not sample"
        self._write(f"The temperature is {temperature:g}{greedy}.\n")

    def _do_beta(self, argument: str) -> None:
        if self._model.beta is None:
            raise ConfigError("/beta has no effect: this model is not guided by values")
        beta = _number(argument)
        if not 0 <= beta < math.inf:
            raise ConfigError(f"/beta needs a number of at least 0, not {argument!r}")
        self._beta = beta
        self._write(f"beta is {beta:g}.\n")

    def _do_rate(self, argument: str) -> None:
        ratings = {"up": 1, "down": -1}
        if argument not in ratings:
            raise ConfigError(f"/rate needs up or down, not {argument!r}")
        self._judge("rating", rating=ratings[argument])

    def _do_correct(self, argument: str) -> None:
        self._judge("correction", correction=argument)
        self._write("The conversation keeps the model's reply.\n")

    def _judge(self, kind: str, **verdict: Any) -> None:
        """Append feedback on the last reply to the feedback file."""
        *turns, reply = self.conversation.turns or [""]
        if not turns:
            raise ConfigError("there is no reply to judge yet")
        replies = [JudgedReply(self._model.name, reply)]
        append_feedback(self._feedback, Feedback(kind, turns, replies, persona=self.conversation.persona, **verdict))
        self._write(f"Appended to {self._feedback}.\n")

    def _do_save(self, argument: str) -> None:
        record = {"messages": self.conversation.messages(), "model": self._model.name}
        self._append(argument, record if self.conversation.turns else None)


def _number(text: str) -> float:
    """A number; NaN for any other text."""
    try:
        return float(text)
    except ValueError:
        return math.nan
