"""Measure how well the warnings of training runs work, on runs that were made to go wrong and on healthy ones.

python scripts/measure_warnings.py --output_path results/warnings
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

import script

from benchmarks.watching import measure

PLANS = [f"benchmarks/watched_runs/{name}.yml" for name in ("tuning", "test", "unseen")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "plans", nargs="*", default=PLANS, help="plans of runs (default: all of benchmarks/watched_runs)"
    )
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="override a key of every plan")
    parser.add_argument(
        "--output_path", type=Path, required=True, help="folder for the runs, outcomes.json and page.md"
    )
    args = parser.parse_args()
    measure(args.plans, args.overrides, args.output_path, shlex.join(["python", *sys.argv]))


if __name__ == "__main__":
    script.run(main)
