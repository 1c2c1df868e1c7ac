"""``rl4dialog select``: replies for people to judge, single ones or pairs, as a queue for ``rl4dialog ui --queue``."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.models import add_model_arguments, load_chosen, model_name
from rl4dialog.core.errors import ConfigError

HELP = "select replies for people to judge, at random or by reward models"
PAGE = "docs/feedback.md"
EXAMPLES = (
    "rl4dialog select --run runs/my_project/my_run --n 100 --output queue.jsonl",
    "rl4dialog select --run runs/my_project/my_run --unit reply --output queue.jsonl",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--output", type=Path, required=True, help="output .jsonl file; an existing one is replaced")
    parser.add_argument(
        "--split", default="train", choices=("train", "val", "test"), help="split of the prompts (default: train)"
    )
    parser.add_argument("--n", type=int, default=50, help="number of pairs or replies (default: 50)")
    parser.add_argument(
        "--unit",
        default="pair",
        choices=("pair", "reply"),
        help="what people judge: pairs of replies to choose from, or single replies to rate (default: pair)",
    )
    parser.add_argument("--n_prompts", type=int, default=None, help="number of prompts to choose from (default: 4 * n)")
    parser.add_argument(
        "--n_replies", type=int, default=None, help="replies generated for each prompt (default: 2; single replies: 1)"
    )
    parser.add_argument(
        "--strategy",
        default="random",
        choices=("random", "uncertain", "disagreement", "gap"),
        help="random (default), or by reward models: the closest pairs, those they disagree about, the clearest ones",
    )
    parser.add_argument(
        "--reward_model", nargs="+", default=[], metavar="RUN", help="folders of runs with alg.id: reward_model"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")


def run(args: argparse.Namespace) -> int:
    from rl4dialog.core.feedback_queue import write_queue
    from rl4dialog.inference.reply_selection import check_strategy, generate_candidates, select_replies
    from rl4dialog.metrics.reward_model import load_reward_model

    fewest = 2 if args.unit == "pair" else 1
    for name, least in (("n", 1), ("n_prompts", 1), ("n_replies", fewest)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name} must be at least {least}, not {value}")
    check_strategy(args.strategy, args.reward_model, args.unit)
    models = [load_reward_model(name, "reply", 64, "rl4dialog select") for name in args.reward_model]
    loaded, n_prompts = load_chosen(args), args.n_prompts or 4 * args.n
    candidates, n_equal = generate_candidates(
        loaded, args.split, n_prompts, args.n_replies or fewest, args.seed, args.unit
    )
    queue = select_replies(candidates, args.n, model_name(args), args.strategy, models, args.seed, args.unit)
    write_queue(args.output, queue)
    notes = f"; {n_equal} prompts had equal replies only" if n_equal else ""
    fewer = f", fewer than the {args.n} requested" if len(queue) < args.n else ""
    what = "pairs" if args.unit == "pair" else "replies"
    print(f"{len(queue)} of {len(candidates)} {what} written to {args.output}{fewer}{notes}")
    return 0
