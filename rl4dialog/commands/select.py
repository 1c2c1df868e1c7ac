"""``rl4dialog select``: replies or conversations for people to judge, as a queue for ``rl4dialog ui --queue``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

from rl4dialog.commands.models import add_model_arguments, load_chosen, model_name
from rl4dialog.core.errors import ConfigError

HELP = "select replies or conversations for people to judge, at random or by reward models"
PAGE = "docs/feedback.md"
EXAMPLES = (
    "rl4dialog select --run runs/my_project/my_run --n 100 --output queue.jsonl",
    "rl4dialog select --run runs/my_project/my_run --unit reply --output queue.jsonl",
    "rl4dialog select --run runs/my_project/my_run --unit conversation --output queue.jsonl",
)
_PLURALS = {"pair": "pairs", "reply": "replies", "conversation": "conversations"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--output", type=Path, required=True, help="output .jsonl file; an existing one is replaced")
    parser.add_argument(
        "--split", default="train", choices=("train", "val", "test"), help="split of the samples (default: train)"
    )
    parser.add_argument("--n", type=int, default=50, help="number of pairs, replies or conversations (default: 50)")
    parser.add_argument(
        "--unit",
        default="pair",
        choices=tuple(_PLURALS),
        help="what people judge: pairs of replies to choose from, single replies to rate, or whole conversations with "
        "the run's partner to rate (default: pair)",
    )
    parser.add_argument(
        "--n_prompts",
        type=int,
        default=None,
        help="number of samples to choose from (default: 4 * n; n for random single replies and conversations)",
    )
    parser.add_argument(
        "--n_replies",
        type=int,
        default=None,
        help="replies to each prompt, or conversations about each sample (default: 2 for pairs, otherwise 1)",
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
    from rl4dialog.inference.queue_selection import check_strategy, generate_candidates, select, size_of
    from rl4dialog.metrics.reward_model import load_reward_model

    fewest = size_of(args.unit)
    for name, least in (("n", 1), ("n_prompts", 1), ("n_replies", fewest)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name} must be at least {least}, not {value}")
    check_strategy(args.strategy, args.reward_model, args.unit)
    judged: Literal["reply", "dialogue"] = "dialogue" if args.unit == "conversation" else "reply"
    models = [load_reward_model(name, judged, 64, "rl4dialog select") for name in args.reward_model]
    n_enough = args.n if args.strategy == "random" and fewest == 1 else 4 * args.n
    loaded, n_prompts = load_chosen(args), args.n_prompts or n_enough
    candidates, n_unusable = generate_candidates(
        loaded, args.split, n_prompts, args.n_replies or fewest, args.seed, args.unit
    )
    queue = select(candidates, args.n, model_name(args), args.strategy, models, args.seed, args.unit)
    write_queue(args.output, queue)
    why = "conversations failed" if args.unit == "conversation" else "prompts had equal replies only"
    notes = f"; {n_unusable} {why}" if n_unusable else ""
    fewer = f", fewer than the {args.n} requested" if len(queue) < args.n else ""
    print(f"{len(queue)} of {len(candidates)} {_PLURALS[args.unit]} written to {args.output}{fewer}{notes}")
    return 0
