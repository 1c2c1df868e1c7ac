"""A chat in the terminal; input and output are handed in, so a pipe or a test can talk as well as a person."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.core.feedback import Feedback, JudgedReply, append_feedback
from rl4dialog.core.json_lines import append_record
from rl4dialog.core.seeding import derive_seed
from rl4dialog.policies.generation import GenerationSettings
from rl4dialog.policies.streaming import PartialReply
from rl4dialog.serving.chat_model import ChatModel, reward_in_words
from rl4dialog.serving.conversation import Conversation
from rl4dialog.serving.slash_commands import COMMANDS, parse_command

_EMPTY = "(an empty reply)"


class TerminalChat:
    """A conversation between a person and a model, line by line.

    Args:
        model: Replies.
        read_line: Asks for a line; raises EOFError when there is no more.
        write: Prints a text as it stands.
        show_reward: Whether to print the reward of each reply, and its parts.
        seed: Makes the replies to the same lines the same.
        feedback: The file to which ratings and corrections are appended.

    Attributes:
        conversation: What was said so far.
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
        self.conversation = Conversation()
        self._model, self._read_line, self._write = model, read_line, write
        self._show_reward, self._seed, self._feedback = show_reward, seed, feedback
        self._temperature: float | None = None
        self._n_asked = 0
        self._told: set[str] = set()
        self._commands = {
            "help": self._help,
            "reset": self._reset,
            "undo": self._undo,
            "persona": self._persona,
            "temperature": self._change_temperature,
            "rate": self._rate,
            "correct": self._correct,
            "save": self._save,
        }

    def run(self) -> None:
        """Talk until /quit, or until there is no more to read."""
        self._write(f"Chat with {self._model.name}. /help lists the commands; /quit or Ctrl-D ends.\n")
        goes_on = True
        while goes_on:
            try:
                line = self._read_line("you: ").strip()
                goes_on = self.take(line)
            except EOFError:
                self._write("\n")
                return
            except KeyboardInterrupt:
                self._write("\n(/quit or Ctrl-D ends the chat)\n")
            except RL4DialogError as error:
                self._write(f"error: {error}\n")

    def take(self, line: str) -> bool:
        """Do what a line says: a command, or a text to reply to.

        Returns:
            Whether the chat goes on.

        Raises:
            ConfigError: If there is no such command, or it cannot be done like that.
        """
        if not line:
            return True
        if not line.startswith("/"):
            self._reply(line)
            return True
        name, argument = parse_command(line)
        if name == "quit":
            return False
        self._commands[name](argument)
        return True

    # -- replies ------------------------------------------------------------------------------------------------------

    def _reply(self, text: str) -> None:
        prompt = self.conversation.prompt(text, self._model.dialogue_format)
        self._n_asked += 1
        seed = None if self._seed is None else derive_seed(self._seed, "chat", self._n_asked)
        kwargs = {} if self._temperature is None else {"temperature": self._temperature}
        self._write("model: ")
        said, whole = self._print(self._model.stream(prompt, seed, **kwargs))
        if not whole and not said:
            self._write("(stopped)\n")
            return
        self._write("\n" if whole else " (stopped)\n")
        meta_info = self.conversation.meta_info(text, self._model.dialogue_format)
        self.conversation.add(text, said)
        if self._show_reward:
            self._print_reward(prompt, said, meta_info)

    def _print(self, parts: Iterator[PartialReply]) -> tuple[str, bool]:
        """Print a reply as it comes.

        Returns:
            What was said, and whether it is the whole reply.
        """
        shown = ""
        try:
            for part in parts:
                # A decoder may change what it has written; then nothing is printed until the end.
                if part.text.startswith(shown):
                    self._write(visible(part.text[len(shown) :]))
                    shown = part.text
                elif part.finished:
                    self._write(f"\nmodel: {visible(part.text)}")
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

    def _help(self, argument: str) -> None:
        del argument
        for name, command in COMMANDS.items():
            self._write(f"  {f'/{name} {command.argument}'.strip():<16} {command.help}\n")

    def _reset(self, argument: str) -> None:
        del argument
        self.conversation.reset()
        self._write("The conversation begins again.\n")

    def _undo(self, argument: str) -> None:
        del argument
        taken_back = self.conversation.undo()
        self._write(f"Taken back: {taken_back[0]}\n" if taken_back else "There is nothing to take back.\n")

    def _persona(self, argument: str) -> None:
        self.conversation.persona = argument or None
        self._write(f"The model is now: {argument}\n" if argument else "The model has no persona.\n")

    def _change_temperature(self, argument: str) -> None:
        try:
            temperature = float(argument)
        except ValueError:
            temperature = math.nan
        if not 0 < temperature < math.inf:
            raise ConfigError(f"/temperature needs a number above 0, not {argument!r}")
        self._temperature = temperature
        samples = GenerationSettings.from_kwargs(self._model.generation_kwargs).do_sample
        greedy = "" if samples else "; but this model does not sample, so it changes nothing"
        self._write(f"The temperature is {temperature:g}{greedy}.\n")

    def _rate(self, argument: str) -> None:
        ratings = {"up": 1, "down": -1}
        if argument not in ratings:
            raise ConfigError(f"/rate needs up or down, not {argument!r}")
        self._judge("rating", rating=ratings[argument])

    def _correct(self, argument: str) -> None:
        self._judge("correction", correction=argument)
        self._write("The conversation keeps the model's own reply.\n")

    def _judge(self, kind: str, **verdict: Any) -> None:
        """Append a judgement of the last reply to the file of feedback."""
        *turns, reply = self.conversation.turns or [""]
        if not turns:
            raise ConfigError("there is no reply to judge yet")
        replies = [JudgedReply(self._model.name, reply)]
        append_feedback(self._feedback, Feedback(kind, turns, replies, persona=self.conversation.persona, **verdict))
        self._write(f"Appended to {self._feedback}.\n")

    def _save(self, argument: str) -> None:
        path = Path(argument).expanduser()
        if path.suffix != ".jsonl":
            raise ConfigError(f"/save needs a file that ends in .jsonl, not {argument!r}; a line is appended to it")
        if not self.conversation.turns:
            raise ConfigError("there is no conversation to save yet")
        append_record(path, {"messages": self.conversation.messages(), "model": self._model.name})
        self._write(f"Appended to {path}.\n")


def visible(text: str) -> str:
    """A text without what would move the cursor or change colours, which a model may say too."""
    return "".join(character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text)


def console_reader(stdin: TextIO, write: Callable[[str], None]) -> Callable[[str], str]:
    """What asks for a line: on a terminal with editing and a history of lines, from a pipe with an echo."""
    if stdin.isatty():
        with suppress(ImportError):
            importlib.import_module("readline")  # gives `input` its editing
        return input

    def read(prompt: str) -> str:
        line = stdin.readline()
        if not line:
            raise EOFError
        write(f"{prompt}{line.rstrip()}\n")
        return line

    return read
