"""The slash commands of the chat with a language model, and the parser of all chats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rl4dialog.core.errors import ConfigError, nearest_hint


@dataclass(frozen=True)
class Command:
    """A command's argument and help text."""

    argument: str
    help: str
    needs_argument: bool = False


COMMANDS = {
    "help": Command("", "list the commands"),
    "reset": Command("", "start a new conversation; the persona stays"),
    "undo": Command("", "remove the last exchange"),
    "persona": Command("TEXT", "set the model's persona; without TEXT, remove it"),
    "temperature": Command("X", "set the sampling temperature", needs_argument=True),
    "beta": Command("X", "set the weight of the values that guide the model", needs_argument=True),
    "rate": Command("up|down", "rate the last reply", needs_argument=True),
    "correct": Command("TEXT", "record a better last reply", needs_argument=True),
    "save": Command("FILE", "append the conversation to a .jsonl file", needs_argument=True),
    "quit": Command("", "end the chat"),
}


def parse_command(line: str, commands: Mapping[str, Command] = COMMANDS) -> tuple[str, str]:
    """Split a line that begins with a slash into command name and argument.

    Args:
        line: The line.
        commands: The commands of the chat.
    """
    name, _, argument = line[1:].partition(" ")
    argument = argument.strip()
    if name not in commands:
        hint = nearest_hint(f"/{name}", [f"/{known}" for known in commands])
        raise ConfigError(f"unknown command '/{name}'{hint} (/help lists the commands)")
    command = commands[name]
    if command.needs_argument and not argument:
        raise ConfigError(f"/{name} needs {command.argument}: /{name} {command.argument}")
    if argument and not command.argument:
        raise ConfigError(f"/{name} takes no argument, not {argument!r}")
    return name, argument
