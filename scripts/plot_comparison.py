"""Plot reward and KL, or a metric of evaluations, of several groups of runs: one line per group, a band over its seeds.

python scripts/plot_comparison.py --output comparison.png PPO=runs/p/ppo_0,runs/p/ppo_1 NLPO=runs/p/nlpo_0
python scripts/plot_comparison.py --metric conversation/return --output returns.png ILQL=runs/p/ilql_0 BC=runs/p/bc_0
"""

from __future__ import annotations

import argparse

import script

from rl4dialog.runs.plots import plot_comparison, plot_evaluations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--output", default="comparison.png", help="output image (default: comparison.png)")
    parser.add_argument("--metric", help="metric of evaluations on the val split (default: reward and KL of rollouts)")
    parser.add_argument("runs", nargs="+", metavar="LABEL=FOLDER,FOLDER", help="label and run folders of one group")
    args = parser.parse_args()
    kinds = dict(text.partition("=")[::2] for text in args.runs)
    runs = {label: [folder for folder in folders.split(",") if folder] for label, folders in kinds.items()}
    if args.metric:
        plot_evaluations(runs, args.metric, args.output)
    else:
        plot_comparison(runs, args.output)


if __name__ == "__main__":
    script.run(main)
