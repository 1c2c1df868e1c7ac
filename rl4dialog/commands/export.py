"""``rl4dialog export``: a run's model as a GGUF file."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.models import add_checkpoint, add_run_argument, add_trust
from rl4dialog.core.gguf import DTYPES

HELP = "write a run's model as a GGUF file, for llama.cpp and programs based on it"
PAGE = "docs/exporting.md"
EXAMPLES = (
    "rl4dialog export --run runs/my_project/my_run --output model.gguf",
    "rl4dialog export --run runs/my_project/my_run --output small.gguf --dtype q8_0",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument("--output", type=Path, required=True, help="output .gguf file")
    parser.add_argument(
        "--dtype", choices=DTYPES, default=None, help="number format of the weights (default: that of the saved model)"
    )
    add_checkpoint(parser)
    parser.add_argument(
        "--prior_only",
        action="store_true",
        help="export the language model of a guided policy, without the values that guide it",
    )
    add_trust(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output file")


def run(args: argparse.Namespace) -> int:
    from rl4dialog.inference.gguf.export import export_gguf

    export_gguf(
        Path(args.run_path),
        args.output,
        args.dtype,
        args.checkpoint,
        prior_only=args.prior_only,
        overwrite=args.overwrite,
        trust=args.trust,
    )
    return 0
