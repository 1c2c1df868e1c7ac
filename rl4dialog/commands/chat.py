"""``rl4dialog chat``: chat with a trained model in the terminal."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rl4dialog.commands.models import add_model_arguments, add_policy, load_chosen, load_turn_level, model_name
from rl4dialog.commands.output import write_verbatim
from rl4dialog.core.errors import ConfigError

if TYPE_CHECKING:
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
    path: Path = args.feedback or Path(args.run_path or ".") / "feedback.jsonl"
    return path.expanduser()


def run(args: argparse.Namespace) -> int:
    acting = load_turn_level(args)
    loaded = load_chosen(args) if acting is None else None

    from rl4dialog.serving.line_chat import console_reader

    read_line = console_reader(sys.stdin, write_verbatim)
    if loaded is not None and loaded.config.task is None:
        from rl4dialog.inference.chat_agent import ChatAgent
        from rl4dialog.serving.terminal import TerminalChat

        agent = ChatAgent(loaded, model_name(args))
        TerminalChat(agent, read_line, write_verbatim, args.show_reward, args.seed, feedback_file(args)).run()
        return 0
    from rl4dialog.serving.task_terminal import TaskTerminalChat

    if args.show_reward or args.feedback is not None:
        raise ConfigError("--show_reward and --feedback are for chats without a task; /goal scores this one")
    task_agent: TaskAgent
    if acting is not None:
        from rl4dialog.inference.turn_level.act_agent import ActAgent

        task_agent = ActAgent(acting, args.seed)
    else:
        from rl4dialog.inference.words_agent import WordsAgent

        assert loaded is not None
        task_agent = WordsAgent(loaded, model_name(args), args.seed)
    TaskTerminalChat(task_agent, read_line, write_verbatim).run()
    return 0
