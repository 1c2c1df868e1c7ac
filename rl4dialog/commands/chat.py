"""``rl4dialog chat``: chat with a trained model in the terminal."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rl4dialog.commands.models import add_model_arguments, add_policy, load_chosen, load_turn_level, model_name
from rl4dialog.commands.output import write_verbatim
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.feedback import check_feedback_file

if TYPE_CHECKING:
    from rl4dialog.inference.loading import LoadedPolicy
    from rl4dialog.inference.task_agent import TaskAgent

HELP = "chat with a run's model, or any model, in the terminal"
PAGE = "docs/chat.md"
EXAMPLES = (
    "rl4dialog chat --run runs/my_project/my_run",
    "rl4dialog chat --run runs/my_project/my_run --show_reward --feedback feedback.jsonl",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_policy(parser)
    add_talk_arguments(parser)


def add_talk_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``chat`` and ``ui`` share."""
    parser.add_argument("--show_reward", action="store_true", help="print the reward of each reply and its parts")
    add_judging_arguments(parser)


def add_judging_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of replies that people judge."""
    parser.add_argument("--seed", type=int, default=None, help="random seed of the replies")
    parser.add_argument(
        "--feedback",
        type=Path,
        default=None,
        help="file for ratings and corrections (default: feedback.jsonl in the run folder or the current folder)",
    )


def feedback_file(args: argparse.Namespace) -> Path:
    """Return the feedback file given by ``--feedback``, or the default one."""
    path: Path = (args.feedback or Path(args.run_path or ".") / "feedback.jsonl").expanduser()
    check_feedback_file(path)
    return path


def load_for_chat(args: argparse.Namespace) -> LoadedPolicy | Callable[[], TaskAgent]:
    """Load what a person chats with: a language model, or an agent for a task.

    Returns:
        The language model, or what returns an agent for each person.
    """
    acting = load_turn_level(args)
    loaded = load_chosen(args) if acting is None else None
    if loaded is not None and loaded.config.task is None:
        return loaded
    for option in ("show_reward", "feedback", "compare"):
        if vars(args).get(option):
            name = model_name(args) if acting is None else acting.name
            raise ConfigError(
                f"{name} is for a task, whose dialogues are scored by whether a goal is reached; remove --{option}"
            )
    if acting is not None:
        from rl4dialog.inference.turn_level.act_agent import ActAgent

        return functools.partial(ActAgent, acting, args.seed)
    from rl4dialog.inference.words_agent import WordsAgent

    assert loaded is not None
    return functools.partial(WordsAgent, loaded, model_name(args), args.seed)


def run(args: argparse.Namespace) -> int:
    from rl4dialog.inference.loading import LoadedPolicy
    from rl4dialog.serving.terminal import TaskTerminalChat, TerminalChat, console_reader

    feedback, chosen = feedback_file(args), load_for_chat(args)
    read_line = console_reader(sys.stdin, write_verbatim)
    if isinstance(chosen, LoadedPolicy):
        from rl4dialog.inference.chat_agent import ChatAgent

        agent = ChatAgent(chosen, model_name(args))
        TerminalChat(agent, read_line, write_verbatim, args.show_reward, args.seed, feedback).run()
        return 0
    TaskTerminalChat(chosen(), read_line, write_verbatim).run()
    return 0
