"""Compare credit per token, credit per turn and RLOO on a task whose first turn decides the reward at the end.

python scripts/compare_credit.py --output_path results/credit
"""

from __future__ import annotations

import argparse
from pathlib import Path

import script

from benchmarks.credit import compare_credit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--n_iters", type=int, default=150, help="maximum number of iterations (default: 150)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="seeds (default: 0 to 4)")
    parser.add_argument("--output_path", type=Path, required=True, help="folder for credit.json and credit.png")
    args = parser.parse_args()
    compare_credit(args.n_iters, args.seeds, args.output_path)


if __name__ == "__main__":
    script.run(main)
