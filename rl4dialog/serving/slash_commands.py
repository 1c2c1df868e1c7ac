"""The commands of a chat in the terminal, and reading them."""

from __future__ import annotations

from dataclasses import dataclass

from rl4dialog.core.errors import ConfigError, nearest_hint


@dataclass(frozen=True)
class Command:
    """What may stand behind a command's name, and what it does."""

    argument: str
    help: str
    needs_argument: bool = False


COMMANDS = {
    "help": Command("", "list the commands"),
    "reset": Command("", "begin the conversation again; the persona stays"),
    "undo": Command("", "take the last exchange back"),
    "persona": Command("TEXT", "who the model is to be; without a text, nobody"),
    "temperature": Command("X", "of the sampling from now on", needs_argument=True),
    "rate": Command("up|down", "rate the last reply", needs_argument=True),
    "correct": Command("TEXT", "what the last reply should have been", needs_argument=True),
    "save": Command("FILE", "append the conversation to a .jsonl file", needs_argument=True),
    "quit": Command("", "end the chat"),
}


def parse_command(line: str) -> tuple[str, str]:
    """Name and argument of a line that begins with a slash.

    Raises:
        ConfigError: If there is no such command, or what stands behind it is wrong.
    """
    name, _, argument = line[1:].partition(" ")
    argument = argument.strip()
    if name not in COMMANDS:
        hint = nearest_hint(f"/{name}", [f"/{known}" for known in COMMANDS])
        raise ConfigError(f"unknown command '/{name}'{hint} (/help lists the commands)")
    command = COMMANDS[name]
    if command.needs_argument and not argument:
        raise ConfigError(f"/{name} needs {command.argument}: /{name} {command.argument}")
    if argument and not command.argument:
        raise ConfigError(f"/{name} takes nothing behind it, not {argument!r}")
    return name, argument
