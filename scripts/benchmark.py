"""Compare the time per iteration of rl4dialog, a plain torch and transformers loop, and other toolkits.

python scripts/benchmark.py --workloads tiny ragged --critics separate none
python scripts/benchmark.py --offline --workloads tiny small --critics separate shared none
python scripts/benchmark.py --workloads small --model builtin/smollm2-135m-instruct --lora --precisions fp32 bf16
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path

import script

from benchmarks.compare import combinations, compare_all, compare_sizes
from benchmarks.profiles import compare_profiles
from benchmarks.workers import compare_workers
from benchmarks.workloads import MODEL_KINDS, WORKLOADS, Workload
from rl4dialog.core.process_memory import keep_freed_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=["tiny", "ragged"])
    parser.add_argument("--kinds", nargs="+", choices=MODEL_KINDS, default=["causal"])
    parser.add_argument("--critics", nargs="+", choices=("separate", "shared", "none"), default=["separate", "none"])
    parser.add_argument("--precisions", nargs="+", choices=("fp32", "bf16"), default=["fp32"])
    parser.add_argument("--lora", action="store_true", help="train only adapters")
    parser.add_argument("--model", help="language model to load, instead of the workload's with random weights")
    parser.add_argument("--episodes", type=int, help="replies per iteration, instead of the workload's")
    parser.add_argument("--batch_size", type=int, help="replies or conversations per minibatch, likewise")
    parser.add_argument("--epochs", type=int, help="passes over the replies, instead of the workload's")
    parser.add_argument("--repeats", type=int, default=5, help="timed iterations per contestant, after one warm-up")
    parser.add_argument("--token_by_token", action="store_true", help="include stable-baselines3's PPO, which is slow")
    parser.add_argument("--scaling", action="store_true", help="instead, fit time to numbers of replies and episodes")
    parser.add_argument("--profile", action="store_true", help="instead, break an iteration down into its parts")
    parser.add_argument("--workers", action="store_true", help="instead, measure start-up, memory and steps of workers")
    parser.add_argument("--offline", action="store_true", help="instead, learn from a log, and decode with its values")
    parser.add_argument("--ilql", type=Path, help="folder of ILQL's original code, to include it (with --offline)")
    parser.add_argument("--agilerl", type=Path, help="folder of AgileRL's packages, to include it (with --offline)")
    parser.add_argument("--contestants", nargs="+", help="compare only these (with --offline)")
    parser.add_argument("--cpu_time", action="store_true", help="report CPU time instead of wall time (with --offline)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--output", type=Path, help="JSON file for all measurements")
    args = parser.parse_args()
    for option in ("ilql", "agilerl", "contestants", "cpu_time"):
        if getattr(args, option) and not args.offline:
            parser.error(f"--{option} needs --offline")
    if args.cpu_time and args.device != "cpu":
        parser.error("--cpu_time says nothing about another --device than cpu")
    workloads = {name: _changed(WORKLOADS[name], args) for name in args.workloads}
    settings = list(combinations(workloads, args.kinds, args.critics, args.precisions, args.lora, args.device))
    if args.workers:
        compare_workers()
    elif args.offline:
        from benchmarks import agile_ilql, on_log, original_ilql

        if unknown := {*(args.contestants or ())} - on_log.CONTESTANTS.keys():
            parser.error(f"there is no contestant {min(unknown)!r}; use some of {', '.join(on_log.CONTESTANTS)}")
        theirs = {"ilql": (on_log.ORIGINAL, original_ilql.SOURCE), "agilerl": (on_log.AGILE, agile_ilql.FOLDER)}
        for option, (name, variable) in theirs.items():
            if folder := getattr(args, option):
                os.environ[variable] = str(folder.resolve())
            elif name in (args.contestants or ()) and variable not in os.environ:
                parser.error(f"the contestant {name!r} needs --{option}")
        on_log.compare_offline(workloads, args.critics, args.repeats, args.device, args.contestants, args.cpu_time)
    elif args.profile:
        keep_freed_memory()
        compare_profiles(workloads, settings)
    elif args.scaling:
        compare_sizes(args.kinds, args.repeats, args.device)
    else:
        compare_all(workloads, settings, args.repeats, args.token_by_token, args.output)


def _changed(workload: Workload, args: argparse.Namespace) -> Workload:
    """The workload with the model and sizes of the command line."""
    given = {"model": args.model, "n_episodes": args.episodes, "n_epochs": args.epochs, "batch_size": args.batch_size}
    return dataclasses.replace(workload, **{name: value for name, value in given.items() if value is not None})


if __name__ == "__main__":
    script.run(main)
