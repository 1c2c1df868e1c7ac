"""``rl4dialog reproduce``: repeat a run and compare the results."""

from __future__ import annotations

import argparse
from pathlib import Path

from rl4dialog.commands.models import add_trust

HELP = "repeat a complete run and check that the results are identical"
PAGE = "docs/reproducing.md"
EXAMPLES = ("rl4dialog reproduce runs/my_project/my_run",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_path", metavar="RUN", help="run folder")
    parser.add_argument(
        "--output_path", type=Path, default=None, help="folder of the new run (default: RUN_reproduced)"
    )
    add_trust(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace an existing run in the output folder")


def run(args: argparse.Namespace) -> int:
    from rl4dialog.experiments.reproduction import reproduce

    return reproduce(Path(args.run_path), args.output_path, args.overwrite, args.trust)
