"""Measure turns per second of a config in dialogue acts, and the gain of worker processes.

python scripts/benchmark_dialogue_acts.py task_configs/town_guide/ppo.yml
"""

from __future__ import annotations

import argparse
from pathlib import Path

import script
import torch

from benchmarks.turn_level import environment_turns, gain_of_workers, training_turns
from rl4dialog.core.config import load_config
from rl4dialog.features.dialogue_acts.config import TurnLevelConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("config", type=Path, help="YAML config file with env.id: dialogue_acts")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a config key")
    parser.add_argument("--turns", type=int, default=20000, help="turns of the environment alone (default: 20000)")
    parser.add_argument("--rounds", type=int, default=7, help="measured iterations (default: 7)")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4], help="numbers of worker processes")
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = load_config(args.config, args.set)
    if not isinstance(config, TurnLevelConfig) or config.env.id != "dialogue_acts":
        parser.error(f"{args.config} has no env.id: dialogue_acts")
    print(f"environment alone: {environment_turns(config, args.turns):,.0f} turns per second of CPU time")
    print(f"{config.alg.id} with updates: {training_turns(config, args.rounds):,.0f} turns per second of CPU time")
    for n, gain in gain_of_workers(config, args.workers, args.rounds).items():
        print(f"{n} worker(s): {gain:.2f} x one process")


if __name__ == "__main__":
    script.run(main)
