"""The parser of ``rl4dialog`` with the options of all commands."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Any

from rl4dialog import __version__

COMMANDS = (
    *("demo", "init", "train", "sweep", "doctor", "prepare", "report", "runs", "reproduce", "evaluate", "generate"),
    *("simulate", "chat", "teach", "ui", "serve", "benchmark", "validate-reward", "push_to_hub", "list", "classifier"),
    *("excerpts", "select", "export", "export-feedback", "improve"),
)
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
        description="Reinforcement learning for dialogue language models",
        epilog=f"{_examples(_FIRST_STEPS)}\n\nDocumentation: docs/get_started.md",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"rl4dialog {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name in COMMANDS:
        command = command_module(name)
        description = command.HELP[0].upper() + command.HELP[1:]  # capitalize() would change names such as HTML
        subparser = subparsers.add_parser(
            name,
            help=command.HELP,
            description=description,
            epilog=f"{_examples(command.EXAMPLES)}\n\nDocumentation: {command.PAGE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _examples(commands: Sequence[str]) -> str:
    return "\n".join(["Examples:", *(f"  {command}" for command in commands)])


def command_module(name: str) -> Any:
    """The module of a command."""
    return importlib.import_module(f"rl4dialog.commands.{name.replace('-', '_')}")
