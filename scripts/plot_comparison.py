"""Plot reward and KL of several groups of runs, one line per group with a band over its seeds.

python scripts/plot_comparison.py --output comparison.png PPO=runs/p/ppo_0,runs/p/ppo_1 NLPO=runs/p/nlpo_0
"""

from __future__ import annotations

import argparse
import sys

from rl4dialog.core.errors import RL4DialogError
from rl4dialog.runs.plots import plot_comparison


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--output", default="comparison.png", help="output image (default: comparison.png)")
    parser.add_argument("runs", nargs="+", metavar="LABEL=FOLDER,FOLDER", help="label and run folders of one group")
    args = parser.parse_args()
    kinds = dict(text.partition("=")[::2] for text in args.runs)
    try:
        plot_comparison({label: [f for f in folders.split(",") if f] for label, folders in kinds.items()}, args.output)
    except RL4DialogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
