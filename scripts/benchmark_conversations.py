"""Measure what conversations cost: joined rows, a batched partner, a partner in the environments, many turns.

python scripts/benchmark_conversations.py
"""

from __future__ import annotations

import argparse

import script

from benchmarks.conversations import BENCHMARKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", choices=BENCHMARKS, nargs="+", default=list(BENCHMARKS), help="what to measure")
    parser.add_argument("--rounds", type=int, default=5, help="repetitions (default: 5)")
    args = parser.parse_args()
    for name in args.only:
        BENCHMARKS[name](args.rounds)


if __name__ == "__main__":
    script.run(main)
