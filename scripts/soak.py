"""Soak tests: run small trainings for a long time and under faults, and print the results.

python scripts/soak.py memory --n 200
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import script

from benchmarks.kills import kill_runs
from benchmarks.soak import fail_rewards, watch_memory
from rl4dialog.core.process_memory import keep_freed_memory

# Check, default number, and description of what is counted.
CHECKS: dict[str, tuple[Callable[[int], Any], int, str]] = {
    "memory": (watch_memory, 200, "iterations, with the memory of all processes after each"),
    "kills": (kill_runs, 50, "times that a run is killed and resumed"),
    "rewards": (fail_rewards, 30, "iterations per run, with rewards that fail in 1 % and in 50 % of all calls"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    subparsers = parser.add_subparsers(dest="check", required=True)
    for name, (_, default, counted) in CHECKS.items():
        counted = counted.replace("%", "%%")  # argparse formats help texts with %
        subparser = subparsers.add_parser(name, help=counted)
        subparser.add_argument("--n", type=int, default=default, help=f"number of {counted} (default: {default})")
    args = parser.parse_args()
    keep_freed_memory()
    CHECKS[args.check][0](args.n)


if __name__ == "__main__":
    script.run(main)
