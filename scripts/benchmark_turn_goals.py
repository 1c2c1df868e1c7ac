"""Measure conversations per second of a config with goals of turns, all at once beside one at a time.

python scripts/benchmark_turn_goals.py task_configs/get_acquainted/turn_goals_dqn.yml
"""

from __future__ import annotations

import argparse
from pathlib import Path

import script
import torch

from benchmarks.turn_level import conversations_per_second
from rl4dialog.core.config import load_config
from rl4dialog.features.dialogue_acts.config import TURN_GOALS, TurnLevelConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("config", type=Path, help=f"YAML config file with env.id: {TURN_GOALS}")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a config key")
    parser.add_argument("--n_envs", type=int, default=64, help="conversations at once (default: 64)")
    parser.add_argument("--rounds", type=int, default=7, help="repetitions (default: 7)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = load_config(args.config, args.set)
    if not isinstance(config, TurnLevelConfig) or config.env.id != TURN_GOALS:
        parser.error(f"{args.config} has no env.id: {TURN_GOALS}")
    together, alone = conversations_per_second(config, args.n_envs, args.rounds)
    print(f"{args.n_envs} at once: {together:,.1f} conversations per second of CPU time")
    print(f"one at a time: {alone:,.1f} (at once: {together / alone:.1f} times as many)")


if __name__ == "__main__":
    script.run(main)
