"""Small runs for a long time and under faults; prints what came of it.

python scripts/soak.py memory --n 200
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl4dialog.core.allocator import keep_freed_memory
from rl4dialog.core.errors import RL4DialogError

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/ is not installed
from benchmarks.kills import kill_runs
from benchmarks.soak import fail_rewards, kill_workers, watch_memory

# What is done, how often by default, and what is counted.
CHECKS: dict[str, tuple[Callable[[int], Any], int, str]] = {
    "memory": (watch_memory, 200, "iterations: what the processes hold after each"),
    "workers": (kill_workers, 10, "workers that are killed, and replaced, during a run"),
    "kills": (kill_runs, 50, "times that a run is killed and resumed"),
    "rewards": (fail_rewards, 30, "iterations of each run with rewards that fail, 1 % and 50 % of them"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    subparsers = parser.add_subparsers(dest="check", required=True)
    for name, (_, default, counted) in CHECKS.items():
        counted = counted.replace("%", "%%")  # argparse fills in what follows a single one
        subparser = subparsers.add_parser(name, help=counted)
        subparser.add_argument("--n", type=int, default=default, help=f"number of {counted} (default: {default})")
    args = parser.parse_args()
    keep_freed_memory()
    try:
        CHECKS[args.check][0](args.n)
    except RL4DialogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
