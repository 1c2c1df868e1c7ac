"""Train with several values of a config key, one after another, and plot reward against KL.

python scripts/sweep.py --key alg.kl_div.target_kl --values 0.02 0.1 0.5 --config_path X.yml --experiment_name kl
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rl4dialog.commands.train import add_arguments
from rl4dialog.core.errors import RL4DialogError
from rl4dialog.experiments.sweep import arguments_of_train, sweep


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--key", required=True, help="config key, such as alg.kl_div.target_kl")
    parser.add_argument("--values", required=True, nargs="+", help="values of the key; one run each")
    add_arguments(parser)
    args = parser.parse_args()
    if args.seeds or args.dry_run:
        parser.error("a sweep trains once per value; --seeds and --dry_run are available only in rl4dialog train")
    project = Path(args.base_path_to_store_results).expanduser().absolute() / args.project_name
    chosen = (args.config_path, args.overrides, args.variant, args.key, args.values)
    try:
        return sweep(*chosen, arguments_of_train(sys.argv[1:]), project, args.experiment_name)
    except RL4DialogError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
