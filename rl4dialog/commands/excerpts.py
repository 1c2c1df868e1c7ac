"""``rl4dialog excerpts``: excerpts of rated conversations, for two reward models and for prompts."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "write excerpts of rated conversations to files for a reward model, a held-out reward model, and prompts"
PAGE = "docs/optimizing_ratings.md"
EXAMPLES = ("rl4dialog excerpts --ratings dstc9 --output_dir excerpts",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ratings", required=True, help="prepared dataset (chitchat, dstc9) or ratings file")
    parser.add_argument("--n_utterances", type=int, default=9, help="utterances of an excerpt (default: 9)")
    parser.add_argument(
        "--default_rating",
        type=float,
        help="dialogues whose ratings all have this value count as not rated, and are only used for prompts",
    )
    parser.add_argument("--output_dir", required=True, help="output folder")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the split (default: 0)")


def run(args: argparse.Namespace) -> int:
    from rl4dialog.core.errors import ConfigError
    from rl4dialog.data.excerpts import write_excerpts
    from rl4dialog.data.ratings import load_ratings

    if args.n_utterances < 2:
        raise ConfigError(f"--n_utterances must be at least 2, not {args.n_utterances}")
    _, rated = load_ratings(args.ratings, "dialogue")
    counts = write_excerpts(rated, Path(args.output_dir), args.n_utterances, args.default_rating, args.seed)
    for name, count in counts.items():
        print(f"{args.output_dir}/{name}.jsonl: {count} excerpts")
    return 0
