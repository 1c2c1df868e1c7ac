"""``rl4dialog generate``: generate replies to a file of prompts."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.models import add_model_arguments, load_chosen
from rl4dialog.core.errors import ConfigError

HELP = "generate a reply to each prompt of a file"
PAGE = "docs/after_a_run.md"
EXAMPLES = ("rl4dialog generate --run runs/my_project/my_run --input prompts.jsonl --output replies.jsonl",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "--input",
        type=Path,
        required=True,
        help=".txt file with one prompt per line, or .jsonl file with prompt, messages or history",
    )
    parser.add_argument("--output", type=Path, required=True, help="output .jsonl file; an incomplete one is continued")
    parser.add_argument("--batch_size", type=int, default=None, help="prompts per batch (default: as in evaluations)")
    parser.add_argument(
        "--generation_kwargs",
        dest="sampling",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="override a sampling setting of the evaluations, such as top_p=0.9",
    )


def run(args: argparse.Namespace) -> int:
    from rl4dialog.inference.batch_generation import reply_to_file

    if args.batch_size is not None and args.batch_size < 1:
        raise ConfigError(f"--batch_size must be at least 1, not {args.batch_size}")
    loaded = load_chosen(args)
    n_written = reply_to_file(loaded, args.input, args.output, args.sampling, args.batch_size)
    if n_written:
        print(f"{n_written} replies written to {args.output}")
    else:
        print(f"{args.output} is already complete; choose another --output for another model")
    return 0
