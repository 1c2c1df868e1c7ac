"""``rl4dialog teach``: accept, reject or correct a model's replies in conversations, in the terminal."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING, Any

from rl4dialog.commands.chat import add_judging_arguments, feedback_file
from rl4dialog.commands.models import add_model_arguments, load_chosen, model_name
from rl4dialog.commands.output import write_verbatim
from rl4dialog.core.errors import ConfigError

if TYPE_CHECKING:
    from rl4dialog.serving.judging import Judging
    from rl4dialog.serving.teaching import Teaching

HELP = "accept, reject or correct a model's replies in conversations, in the terminal"
PAGE = "docs/feedback.md"
EXAMPLES = (
    "rl4dialog teach --run runs/my_project/my_run",
    "rl4dialog teach --run runs/my_project/my_run --split val --n 20",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_judging_arguments(parser)
    add_situation_arguments(parser)


def add_situation_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``teach`` and ``ui --teach`` share."""
    parser.add_argument(
        "--split", default=None, choices=("train", "val", "test"), help="split of the situations (default: train)"
    )
    parser.add_argument("--n", type=int, default=None, help="number of situations (default: all of the split)")


def load_teaching(args: argparse.Namespace) -> Teaching:
    """Load the model that the arguments select, with the situations in which it is taught."""
    if args.n is not None and args.n < 1:
        raise ConfigError(f"--n must be at least 1, not {args.n}")

    from rl4dialog.inference.teaching import build_teaching

    return build_teaching(
        load_chosen(args), model_name(args), args.split or "train", args.n, feedback_file(args), args.seed
    )


def print_what_to_do(judging: Judging[Any], args: argparse.Namespace) -> None:
    """Print the number of judgements and, if there are any, the commands that learn from them."""
    from rl4dialog.data.latest_feedback import count_kinds

    if not judging.given:
        print("No judgements were made.")
        return
    print(f"Appended to {judging.feedback}: {count_kinds(judging.given)}. To learn from all judgements in this file:")
    feedback, are_whole = shlex.quote(str(judging.feedback)), [each.rates_conversation for each in judging.given]
    if args.run_path is not None:
        chosen = "" if args.feedback is None else f" --feedback {feedback}"
        print(f"  rl4dialog improve --run {shlex.quote(args.run_path)}{chosen}")
    elif not all(are_whole):
        print(f"  rl4dialog improve --run RUN --feedback {feedback}")
    if not all(are_whole):
        print(f"  rl4dialog export-feedback --feedback {feedback} --output pairs.jsonl")
    if any(are_whole):
        print("  rl4dialog train with a reward model of conversations (docs/feedback.md, Whole conversations)")


def run(args: argparse.Namespace) -> int:
    from rl4dialog.serving.terminal import TeachingTerminal, console_reader

    teaching = load_teaching(args)
    TeachingTerminal(teaching, console_reader(sys.stdin, write_verbatim), write_verbatim).run()
    print_what_to_do(teaching, args)
    return 0
