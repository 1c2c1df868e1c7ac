"""``rl4dialog runs``: list the runs in a folder."""

from __future__ import annotations

import argparse
from pathlib import Path

HELP = "list the runs in a folder with their state and results"
PAGE = "docs/runs.md"
EXAMPLES = (
    "rl4dialog runs",
    "rl4dialog runs runs/my_project",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="folder to search (default: this one)")
    parser.add_argument(
        "--metrics", nargs="+", default=[], metavar="KEY", help="metrics to show (default: the first ones of each run)"
    )


def run(args: argparse.Namespace) -> int:
    from rl4dialog.runs.listing import list_runs, print_runs

    print_runs(list_runs(args.folder.expanduser()), args.metrics)
    return 0
