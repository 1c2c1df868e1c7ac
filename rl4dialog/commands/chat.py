"""``rl4dialog chat``: talk to a trained model in the terminal."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rl4dialog.commands.models import add_model_arguments, load_chosen, model_name

HELP = "talk to a run's model, or any model, in the terminal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_talk_arguments(parser)


def add_talk_arguments(parser: argparse.ArgumentParser) -> None:
    """What a talk in the terminal and one on the page have in common."""
    parser.add_argument("--show_reward", action="store_true", help="print the reward of each reply, and its parts")
    parser.add_argument("--seed", type=int, default=None, help="gives the same replies to the same lines")
    parser.add_argument(
        "--feedback",
        type=Path,
        default=None,
        help="the file for what you think of replies; by default feedback.jsonl, of the run or of where you are",
    )


def feedback_file(args: argparse.Namespace) -> Path:
    """The file that the arguments name, or the one by default."""
    path: Path = args.feedback or Path(args.run_path or ".") / "feedback.jsonl"
    return path.expanduser()


def run(args: argparse.Namespace) -> int:
    loaded = load_chosen(args)

    from rl4dialog.inference.chat_agent import ChatAgent
    from rl4dialog.serving.terminal import TerminalChat, console_reader

    def write(text: str) -> None:
        print(text, end="", flush=True)

    for stream in (sys.stdin, sys.stdout):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    agent = ChatAgent(loaded, model_name(args))
    read_line = console_reader(sys.stdin, write)
    TerminalChat(agent, read_line, write, args.show_reward, args.seed, feedback_file(args)).run()
    return 0
