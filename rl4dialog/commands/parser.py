"""The parser of ``rl4dialog`` with the options of all commands."""

from __future__ import annotations

import argparse
import importlib
import textwrap
from collections.abc import Sequence
from typing import Any

from rl4dialog import __version__

_GROUPS = {
    "First steps": ("demo", "init", "list"),
    "Train": ("doctor", "prepare", "train", "sweep", "benchmark", "reproduce", "classifier"),
    "Results": ("runs", "report", "evaluate", "generate", "simulate", "validate-reward"),
    "Talk": ("chat", "ui", "serve"),
    "Learn from people": ("select", "teach", "improve", "export-feedback", "excerpts"),
    "Publish": ("export", "push_to_hub"),
}
COMMANDS = tuple(name for names in _GROUPS.values() for name in names)
_NAME_WIDTH = max(map(len, COMMANDS)) + 4
_WIDTH = 80
_FIRST_STEPS = (
    "rl4dialog demo",
    "rl4dialog init --data replies.csv",
    "rl4dialog train --config_path config.yml",
    "rl4dialog COMMAND --help",
)


def make_parser() -> argparse.ArgumentParser:
    """Parser of ``rl4dialog`` with all commands."""
    parser = argparse.ArgumentParser(
        prog="rl4dialog",
        usage="rl4dialog COMMAND [OPTIONS]",
        description=f"Reinforcement learning for dialogue language models\n\n{_commands()}",
        epilog=f"{_examples(_FIRST_STEPS)}\n\nDocumentation: docs/get_started.md",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rl4dialog {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", required=True, metavar="command", prog="rl4dialog", help=argparse.SUPPRESS
    )
    for name in COMMANDS:
        command = command_module(name)
        description = command.HELP[0].upper() + command.HELP[1:]  # capitalize() would change names such as HTML
        subparser = subparsers.add_parser(
            name,
            description=description,
            epilog=f"{_examples(command.EXAMPLES)}\n\nDocumentation: {command.PAGE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _commands() -> str:
    """All commands by purpose, with what they do."""
    lines = []
    for title, names in _GROUPS.items():
        lines.append(f"{title}:")
        for name in names:
            start, indent = f"  {name:<{_NAME_WIDTH - 2}}", " " * _NAME_WIDTH
            text = command_module(name).HELP
            lines += textwrap.wrap(text, _WIDTH, initial_indent=start, subsequent_indent=indent)
        lines.append("")
    return "\n".join(lines)


def _examples(commands: Sequence[str]) -> str:
    return "\n".join(["Examples:", *(f"  {command}" for command in commands)])


def command_module(name: str) -> Any:
    """The module of a command."""
    return importlib.import_module(f"rl4dialog.commands.{name.replace('-', '_')}")
