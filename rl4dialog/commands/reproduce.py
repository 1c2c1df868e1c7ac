"""``rl4dialog reproduce``: do a run once more and compare."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.models import add_trust

HELP = "run a complete run again, and tell whether it comes out the same"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_path", metavar="RUN", help="folder of the run")
    parser.add_argument(
        "--output_path", type=Path, default=None, help="folder of the new run; by default RUN with _reproduced behind"
    )
    add_trust(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace a run that is there already")


def run(args: argparse.Namespace) -> int:
    from rl4dialog.experiments.reproduction import reproduce

    return reproduce(Path(args.run_path), args.output_path, args.overwrite, args.trust)
