"""The loop of a chat in the terminal: lines are messages or commands. Input and output are passed in."""

from __future__ import annotations

import importlib
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.style import Style

from rl4dialog.core.errors import ConfigError, RL4DialogError
from rl4dialog.core.json_lines import append_record
from rl4dialog.serving.slash_commands import Command, parse_command

_COLORS = {"you": "green", "model": "cyan", "agent": "cyan"}


def speaker(name: str) -> str:
    """Name before what someone says, in color on a terminal unless ``NO_COLOR`` is set."""
    console = Console()
    if console.color_system is None or console.no_color:
        return f"{name}: "
    return Style(color=_COLORS[name], bold=True).render(f"{name}:") + " "


class LineChat(ABC):
    """A line-by-line conversation.

    A command ``/name`` calls the method ``_do_name`` with its argument; ``/quit`` ends the chat.

    Args:
        read_line: Prompts for a line; raises EOFError at the end of the input.
        write: Prints text verbatim.
        commands: The commands.
    """

    def __init__(
        self, read_line: Callable[[str], str], write: Callable[[str], None], commands: Mapping[str, Command]
    ) -> None:
        self._read_line, self._write, self._commands = read_line, write, commands

    @abstractmethod
    def _greet(self) -> None:
        """Say who is there."""

    @abstractmethod
    def _reply(self, text: str) -> None:
        """Reply to a message."""

    def run(self) -> None:
        """Chat until /quit or the end of the input."""
        self._greet()
        continues = True
        while continues:
            try:
                line = self._read_line(speaker("you")).strip()
                continues = self.take(line)
            except EOFError:
                self._write("\n")
                return
            except KeyboardInterrupt:
                self._write("\n(type /quit or Ctrl-D to end the chat)\n")
            except RL4DialogError as error:
                self._write(f"error: {error}\n")

    def take(self, line: str) -> bool:
        """Process a line: run a command, or reply to a message.

        Returns:
            Whether the chat continues.

        Raises:
            ConfigError: If the command is unknown, or cannot be executed.
        """
        if not line:
            return True
        if not line.startswith("/"):
            self._reply(line)
            return True
        name, argument = parse_command(line, self._commands)
        if name == "quit":
            return False
        getattr(self, f"_do_{name}")(argument)
        return True

    def _do_help(self, argument: str) -> None:
        del argument
        for name, command in self._commands.items():
            self._write(f"  {f'/{name} {command.argument}'.strip():<16} {command.help}\n")

    def _append(self, argument: str, record: Mapping[str, Any] | None) -> None:
        """Append a record to the file of ``/save``."""
        path = Path(argument).expanduser()
        if path.suffix != ".jsonl":
            raise ConfigError(f"/save needs a .jsonl file, not {argument!r}")
        if record is None:
            raise ConfigError("there is no conversation to save yet")
        append_record(path, record)
        self._write(f"Appended to {path}.\n")


def visible(text: str) -> str:
    """Replace control characters, which could move the cursor or change colors."""
    return "".join(character if character.isprintable() or character in "\n\t" else "\ufffd" for character in text)


def console_reader(stdin: TextIO, write: Callable[[str], None]) -> Callable[[str], str]:
    """Return a line reader: with editing and history on a terminal, with an echo for a pipe.

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
