"""Measure time and memory of offline runs on large logs: first start, second start, training.

python scripts/benchmark_logs.py --sizes 100000 1000000
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # benchmarks/ is not installed
from benchmarks.large_logs import SIZES, compare_log_sizes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of conversations")
    compare_log_sizes(parser.parse_args().sizes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
