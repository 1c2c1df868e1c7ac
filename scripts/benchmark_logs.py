"""Measure time and memory of offline runs on large logs: first start, second start, training.

python scripts/benchmark_logs.py --sizes 100000 1000000
"""

from __future__ import annotations

import argparse

import script

from benchmarks.large_logs import SIZES, compare_log_sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of conversations")
    compare_log_sizes(parser.parse_args().sizes)


if __name__ == "__main__":
    script.run(main)
