"""The parser of ``rl4dialog`` with the options of all commands."""

from __future__ import annotations

import argparse
import importlib
import textwrap
from collections.abc import Mapping, Sequence

from rl4dialog import __version__
from rl4dialog.commands import first_steps, results, train
from rl4dialog.commands import list as listing
from rl4dialog.commands.options import GROUPS, MADE, Command
from rl4dialog.core.features import features

_MODULES = first_steps, listing, results, train  # their import makes the commands
_OF_FEATURES = [importlib.import_module(each.commands) for each in features().values() if each.commands]
_GROUPS = {group: [MADE[name] for name in names] for group, names in GROUPS.items() if names}
COMMANDS = {command.name: command for commands in _GROUPS.values() for command in commands}
_FIRST = sorted((each for each in COMMANDS.values() if each.place), key=lambda each: each.place)
_NAME_WIDTH = max(map(len, COMMANDS)) + 4
_WIDTH = 80
_FIRST_STEPS = (
    "rl4dialog demo",
    "rl4dialog init --data replies.csv",
    "rl4dialog train --config_path config.yml",
    "rl4dialog COMMAND --help",
)


def make_parser(shows_all: bool = False) -> argparse.ArgumentParser:
    """Make the parser, whose help lists all commands or those that most people need."""
    groups = _GROUPS if shows_all else {"Commands": _FIRST}
    more = "" if shows_all else f"{len(COMMANDS) - len(_FIRST)} more commands: rl4dialog --help --all"
    parser = argparse.ArgumentParser(
        prog="rl4dialog",
        usage="rl4dialog COMMAND [OPTIONS]",
        description=f"Reinforcement learning for dialogue language models\n\n{_commands(groups)}{more}",
        epilog=f"{_examples(_FIRST_STEPS)}\n\nDocumentation: docs/get_started.md",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--all", action="help", help="show all commands and exit")
    parser.add_argument("--version", action="version", version=f"rl4dialog {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", required=True, metavar="command", prog="rl4dialog", help=argparse.SUPPRESS
    )
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(
            name,
            description=command.help[0].upper() + command.help[1:],  # capitalize() would change names such as HTML
            epilog=f"{_examples(command.examples)}\n\nDocumentation: {command.page}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for option, settings in command.options:
            subparser.add_argument(option, **{key: value for key, value in settings.items() if key != "at_least"})
        subparser.add_argument("--debug", action="store_true", help="show tracebacks")
    return parser


def _commands(groups: Mapping[str, Sequence[Command]]) -> str:
    """Commands by purpose, with what they do."""
    lines, indent = [], " " * _NAME_WIDTH
    for title, commands in groups.items():
        lines.append(f"{title}:")
        for each in commands:
            start = f"  {each.name:<{_NAME_WIDTH - 2}}"
            lines += textwrap.wrap(each.help, _WIDTH, initial_indent=start, subsequent_indent=indent)
        lines.append("")
    return "\n".join(lines)


def _examples(commands: Sequence[str]) -> str:
    return "\n".join(["Examples:", *(f"  {command}" for command in commands)])
