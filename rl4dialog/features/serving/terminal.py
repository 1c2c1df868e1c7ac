"""Chats in the terminal: a line is a message, or a slash command. Input and output are passed in."""

from __future__ import annotations

import importlib
import itertools
import re
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TextIO

from rich.style import Style

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.console import Console
from rl4dialog.core.errors import ConfigError, RL4DialogError, nearest_hint
from rl4dialog.core.files import append_record
from rl4dialog.core.protocols import Player
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT
from rl4dialog.core.untrusted import visible
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.data.dialogue_text import persona_in, without_goal
from rl4dialog.features.serving.chat import Chat, ChatState, Reply, Settings, samples, takes_persona
from rl4dialog.features.serving.teaching import Teaching
from rl4dialog.inference.loading import LoadedPolicy
from rl4dialog.inference.simulation import WithoutModel, simulate_to_file
from rl4dialog.rollouts.talk import Talk
from rl4dialog.text.prompts import encode_reply
from rl4dialog.text.tokenizer import UNKNOWN_TOKEN
from rl4dialog.training.building.conversations import chosen_partners

ReadLine = Callable[[str], str]  # prompts for a line; raises EOFError at the end of the input
Write = Callable[[str], None]  # prints text verbatim

_COLORS = {"you": "green", "model": "cyan", "agent": "cyan"}


class Command(NamedTuple):
    """A slash command's help text and argument."""

    help: str
    argument: str = ""
    needs_argument: bool = False


_N_FOR_WORDS, _MAX_WORDS = 1000, 60  # conversations that are read for words, and words that are listed


def commands_of(module: Path) -> dict[str, dict[str, Command]]:
    """Slash commands by chat and name, whose texts are in a file of the same name as a module, with ``.yaml``."""
    texts = packaged_yaml(module.with_suffix(".yaml"))
    return {chat: {name: Command(**of_one) for name, of_one in commands.items()} for chat, commands in texts.items()}


_COMMANDS = commands_of(Path(__file__))


def parse_command(line: str, commands: Mapping[str, Command]) -> tuple[str, str]:
    """Split a line that begins with a slash into command name and argument."""
    name, argument = (part.strip() for part in line[1:].partition(" ")[::2])
    if name not in commands:
        hint = nearest_hint(f"/{name}", [f"/{known}" for known in commands])
        raise ConfigError(f"unknown command '/{name}'{hint} (/help lists the commands)")
    command = commands[name]
    if command.needs_argument and not argument:
        raise ConfigError(f"/{name} needs {command.argument}: /{name} {command.argument}")
    if argument and not command.argument:
        raise ConfigError(f"/{name} takes no argument, not {argument!r}")
    return name, argument


def speaker(name: str) -> str:
    """Name before what someone says, in color on a terminal unless ``NO_COLOR`` is set."""
    console = Console()
    if console.color_system is None or console.no_color:
        return f"{name}: "
    return Style(color=_COLORS[name], bold=True).render(f"{name}:") + " "


def console_reader(stdin: TextIO, write: Write) -> ReadLine:
    """A line reader: with editing and history on a terminal, with an echo for a pipe.

    From now on, bytes that are no text are replaced, instead of raising errors; also in the output.
    """
    for stream in (stdin, sys.stdout):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if stdin.isatty():
        with suppress(ImportError):
            importlib.import_module("readline")  # enables line editing in `input`
        # Readline must not count color codes as columns.
        return lambda prompt: input(re.sub(r"(\x1b\[[\d;]*m)", "\x01\\1\x02", prompt))

    def read(prompt: str) -> str:
        line = stdin.readline()
        if not line:
            raise EOFError
        write(f"{prompt}{line.rstrip()}\n")
        return line

    return read


class LineChat(ABC):
    """A line-by-line conversation.

    A command ``/name`` calls the method ``_do_name``, with its argument if it can have one; ``/quit`` ends the chat.
    """

    commands: ClassVar[Mapping[str, Command]]
    no_effect: Mapping[str, str] = {}  # why commands have none here

    def __init__(self, read_line: ReadLine, write: Write) -> None:
        self._read_line, self._write = read_line, write

    @abstractmethod
    def _greet(self) -> None:
        """Say who is there."""

    @abstractmethod
    def _reply(self, text: str) -> None:
        """Reply to a message."""

    def run(self) -> None:
        self._greet()
        while self._take_line():
            pass

    def _take_line(self) -> bool:
        """Read a line and take it; returns whether the chat continues."""
        try:
            return self.take(self._read_line(speaker("you")).strip())
        except EOFError:
            self._write("\n")
            return False
        except KeyboardInterrupt:
            self._write("\n(type /quit or Ctrl-D to end the chat)\n")
        except RL4DialogError as error:
            self._write(f"error: {error}\n")
        return True

    def take(self, line: str) -> bool:
        """Run a command, or reply to a message; returns whether the chat continues."""
        if not line.startswith("/"):
            if line:
                self._reply(line)
            return True
        name, argument = parse_command(line, self.commands)
        if name == "quit":
            return False
        if name in self.no_effect:
            raise ConfigError(f"/{name} has no effect: {self.no_effect[name]}")
        getattr(self, f"_do_{name}")(*([argument] if self.commands[name].argument else []))
        return True

    def _do_help(self) -> None:
        for name, command in self.commands.items():
            if name not in self.no_effect:
                self._write(f"  {f'/{name} {command.argument}'.strip():<16} {command.help}\n")

    def _append(self, argument: str, record: Mapping[str, Any] | None) -> None:
        path = Path(argument).expanduser()
        if path.suffix != ".jsonl":
            raise ConfigError(f"/save needs a .jsonl file, not {argument!r}")
        if record is None:
            raise ConfigError("there is no conversation to save yet")
        append_record(path, record)
        self._write(f"Appended to {path}.\n")


class TerminalChat(LineChat):
    """A conversation between a user and a language model; with a seed, the same lines get the same replies."""

    commands = _COMMANDS["chat"]

    def __init__(self, chat: Chat, read_line: ReadLine, write: Write) -> None:
        super().__init__(read_line, write)
        self._chat, self._model = chat, chat.models[0]
        self.state = ChatState(Settings(persona=self._model.persona))
        reasons = (
            ("persona", takes_persona(self._model), "no prompt of its training has one"),
            ("temperature", samples(self._model), "this model does not sample"),
            ("beta", self._model.beta is not None, "this model is not guided by values"),
        )
        self.no_effect = {name: why for name, has_effect, why in reasons if not has_effect}

    def _greet(self) -> None:
        self._write(f"Chat with {self._model.name}. Type /help for commands, /quit or Ctrl-D to end.\n")
        if persona := self.state.settings.persona:
            self._write(f"Persona, as in training: {visible(persona)}\n")

    def _reply(self, text: str) -> None:
        before, states = self.state, self._chat.send(self.state, text, self.state.settings)
        self.state = next(states)
        self._write(speaker("model"))
        shown, n = "", len(self.state.exchanges)
        try:
            for self.state in states:
                reply = self._last_reply
                if len(self.state.exchanges) > n:
                    self._write(f"\n{speaker('tool')}{visible(self.state.exchanges[-1].text)}\n{speaker('model')}")
                    shown, n = "", len(self.state.exchanges)
                # A decoder may revise earlier text; then nothing more is printed until the end.
                if reply.text.startswith(shown):
                    self._write(visible(reply.text[len(shown) :]))
                    shown = reply.text
                elif reply.finished:
                    self._write(f"\n{speaker('model')}{visible(reply.text)}")
                    shown = reply.text
            self._write("\n" if shown else "(empty reply)\n")
            if self.state.note.startswith("tool: "):
                self._write(f"{visible(self.state.note)}\n")
        except KeyboardInterrupt:
            if self._last_reply.finished:  # its reward is being computed
                raise
            self.state = self._chat.examined(self.state).settled()
            self._write(" (stopped)\n" if shown else "(stopped)\n")
        except Exception:
            self.state = replace(before, n_asked=self.state.n_asked)
            raise
        if len(self.state.exchanges) > len(before.exchanges):
            for line in reversed(self._last_reply.reward):
                self._write(f"  {line}\n")

    @property
    def _last_reply(self) -> Reply:
        assert self.state.last is not None
        return self.state.last.replies[0]

    # -- commands -----------------------------------------------------------------------------------------------------

    def _do_reset(self) -> None:
        self.state = self._chat.reset(self.state)
        self._write("The conversation was reset.\n")

    def _do_undo(self) -> None:
        self.state = self._chat.undo(self.state)
        self._write(f"{self.state.note}\n")

    def _do_persona(self, argument: str) -> None:
        self._set(persona=argument or None)
        self._write(f"Persona: {argument}\n" if argument else "The model has no persona.\n")

    def _do_temperature(self, argument: str) -> None:
        self._set(temperature=_number(argument))
        self._write(f"The temperature is {argument}.\n")

    def _do_beta(self, argument: str) -> None:
        self._set(beta=_number(argument))
        self._write(f"beta is {argument}.\n")

    def _set(self, **settings: Any) -> None:
        self.state = self._chat.changed(self.state, replace(self.state.settings, **settings))

    def _do_rate(self, argument: str) -> None:
        ratings = {"up": 1, "down": -1}
        if argument not in ratings:
            raise ConfigError(f"/rate needs up or down, not {argument!r}")
        self._judge("rating", rating=ratings[argument])

    def _do_correct(self, argument: str) -> None:
        self._judge("correction", correction=argument)
        self._write("The conversation keeps the model's reply.\n")

    def _judge(self, kind: str, **verdict: Any) -> None:
        if self.state.last is None:
            raise ConfigError("there is no reply to judge yet")
        self._chat.record(self.state.last, kind, self.state.last.replies, **verdict)
        self._write(f"Appended to {self._chat.feedback}.\n")

    def _do_save(self, argument: str) -> None:
        persona = self.state.settings.persona
        messages = [{"role": "system", "content": persona}] if persona else []
        record = {"messages": [*messages, *self.state.messages(0)], "model": self._model.name}
        self._append(argument, record if self.state.exchanges else None)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a number") from None


class TeachingTerminal(LineChat):
    """A person teaches a model: a line that is no command is a better reply."""

    commands = _COMMANDS["teach"]
    _me = "me"

    def __init__(self, teaching: Teaching, read_line: ReadLine, write: Write) -> None:
        super().__init__(read_line, write)
        self._teaching, self._id, self._progress = teaching, "", ""
        self._n_printed = 0  # utterances of the situation, the reply to judge included
        self._goal: str | None = None
        self._learner: Any = teaching.learner
        self.no_effect = {} if teaching.goals else {"goal": "the samples have no goals"}
        if teaching.learner is None:
            self.no_effect |= dict.fromkeys(("keep", "undo"), "the model learns only with --learn_every")

    def take(self, line: str) -> bool:
        return super().take(line) and (not line or self._show())

    def run(self) -> None:
        """Teach until everything is judged, /quit or the end of the input."""
        if self._teaching.is_done:
            self._write(f"{self._teaching.progress} There is nothing left to judge.\n")
        else:
            super().run()

    def _greet(self) -> None:
        self._write("Accept a reply with /up, reject it with /down, or type a better one. /help lists the commands.\n")
        self._show()

    def _show(self) -> bool:
        """Print what is new of the situation and the reply to judge; returns whether there is one."""
        shown = self._teaching.current(self._me)
        if shown is None:
            self._write(f"\n{self._teaching.progress}\n")
            return False
        if shown.id == self._id:
            return True
        goal, progress, n_printed = self._teaching.goal(self._me), self._teaching.progress, self._n_printed
        if progress != self._progress:  # another situation
            n_printed, self._goal = 0, None
            self._write(f"\n{progress}\n")
            if persona := without_goal(shown.persona or "") if goal else shown.persona:
                self._write(f"persona: {visible(persona)}\n")
        for i, text in enumerate(shown.turns[n_printed:], start=n_printed):
            # The model answers the last one, and the sides alternate.
            self._write(f"{'partner' if (len(shown.turns) - i) % 2 else 'model'}: {visible(text)}\n")
        if goal is not None and goal != self._goal:
            self._write(f"goal: {visible(goal)}\n")
        self._write(f"{speaker('model')}{visible(shown.replies[0].text) or '(empty reply)'}\n")
        self._id, self._progress, self._n_printed, self._goal = shown.id, progress, len(shown.turns) + 1, goal
        return True

    def _reply(self, text: str) -> None:
        self._write(f"{self._teaching.correct(self._me, self._id, 0, text)}\n")

    def _do_up(self, rating: int = 1) -> None:
        self._write(f"{self._teaching.rate(self._me, self._id, 0, rating)}\n")

    def _do_down(self) -> None:
        self._do_up(-1)

    def _do_goal(self, argument: str) -> None:
        if argument:
            self._teaching.set_goal(self._me, self._id, argument)
        else:
            self._write(f"{', '.join(self._teaching.goals)}\n")

    def _do_next(self) -> None:
        self._teaching.skip(self._me, self._id)

    def _do_keep(self) -> None:
        self._write(f"{self._learner.keep()}\n")

    def _do_undo(self) -> None:
        self._write(f"{self._learner.undo()}\n")


class Stopped(BaseException):
    """A person has stopped playing."""


class PlayTerminal(LineChat, Player):
    """A person who plays the agent of a run, game by game."""

    commands = _COMMANDS["play"]

    def __init__(
        self, run: LoadedPolicy | WithoutModel, hints: Player | None, read_line: ReadLine, write: Write
    ) -> None:
        super().__init__(read_line, write)
        self._run, self._hints = run, hints
        self.no_effect = {} if hints is not None else {"hint": "--hint names no player or run that gives hints"}

    def _greet(self) -> None:
        self._write("\nA new game begins. Type /help for commands, /quit or Ctrl-D to end.\n")

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._n_shown = 0
        self._greet()
        if persona := persona_in(meta_info):
            self._write(f"persona: {visible(persona)}\n")
        if self._hints is not None:
            self._hints.reset(meta_info, seed)

    def say(self, history: list[str]) -> str:
        self._show(history)
        self._said, self._history = "", history
        while not self._said:
            if not self._take_line():
                raise Stopped
        self._n_shown += 1
        return self._said

    def finish(self, talk: Talk) -> None:
        """Show how a game ended."""
        self._show([turn.text for turn in talk.dialogue.turns])
        outcome = "".join(f", {name}: {value:g}" for name, value in (talk.dialogue.outcome or {}).items())
        self._write(f"{talk.error or f'The game is over. Return: {talk.total:g}{outcome}'}\n")

    def _show(self, history: Sequence[str]) -> None:
        for i, text in enumerate(history[self._n_shown :], start=self._n_shown):
            # The agent speaks next, and the sides alternate.
            self._write(f"{'partner' if (len(history) - i) % 2 else 'agent'}: {visible(text)}\n")
        self._n_shown = len(history)

    def _reply(self, text: str) -> None:
        run, dialogue_format = self._run, self._run.data.pools["train"].dialogue_format
        if dialogue_format is not None:
            dialogue_format.check_said(text)
        n_tokens = run.lengths.reply
        heard = run.policy.end_of_turn.reply_text(encode_reply(run.tokenizer, text, None, n_tokens))
        if "".join(heard.split()) != "".join(text.split()):
            problem = f"this would be read as {heard!r} in the run's tokens, of which a reply has {n_tokens}"
            raise ConfigError(problem + (self._known_words() if run.tokenizer.unk_token == UNKNOWN_TOKEN else ""))
        self._said = text

    def _known_words(self) -> str:
        """The most common words of agents in the data, for a person who talks in the tokens of a small vocabulary."""
        said: Counter[str] = Counter()
        for dialogue in itertools.islice(self._run.data.pools["train"].conversations(), _N_FOR_WORDS):
            said.update(word for turn in dialogue.said if turn.speaker == AGENT for word in turn.text.split())
        words = ", ".join(sorted(word for word, _ in said.most_common(_MAX_WORDS)))
        return f"; words of agents in the training data{' include' if len(said) > _MAX_WORDS else ''}: {words}"

    def _do_hint(self) -> None:
        assert self._hints is not None
        self._write(f"hint: {visible(self._hints.hint(self._history)) or '(empty reply)'}\n")


class ModelHints(Player):
    """Says what a trained model would say."""

    def __init__(self, loaded: LoadedPolicy) -> None:
        if loaded.dialogue_format is None:
            raise ConfigError(f"--hint: datapool {loaded.config.datapool.id!r} of the run contains no dialogues")
        self._loaded, self._format = loaded, loaded.dialogue_format

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._persona, self._seed = persona_in(meta_info), seed

    def say(self, history: list[str]) -> str:
        prompt = self._format.prompt(self._format.context(history), self._persona)
        return self._loaded.generate(prompt, seed=derive_seed(self._seed, "hint", len(history)))


def play_in_terminal(
    run: LoadedPolicy | WithoutModel,
    hint: Player | None,
    split: str,
    n: int | None,
    seed: int,
    path: Path,
    write: Write,
) -> None:
    """Let a person play games about the samples of a split, after those that are in the file."""
    partners = chosen_partners(run.config)
    rules = PartnerRegistry.describe(partners[-1][0].id)[0] if partners else ""
    write(f"You are the agent. The partner: {rules}\n")
    terminal = PlayTerminal(run, hint, console_reader(sys.stdin, write), write)
    n_games = n or len(run.data.pools[split])
    with suppress(Stopped):
        simulate_to_file(run, path, split, n_games, seed, "person", lambda: terminal, after=terminal.finish)
    n_done = len(path.read_bytes().splitlines())
    write(f"{n_done} of {n_games} games are in {path}; the same command continues after them.\n")
