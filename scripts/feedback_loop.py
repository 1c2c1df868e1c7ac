"""The loop of votes, reward model, PPO and comparison, with a simulated person whose preferences are known.

    python scripts/feedback_loop.py --run RUN --n_votes 100 300 1000 --output FOLDER

RUN is a run on small_talk. The person is described in :mod:`rl4dialog.data.small_talk.person`, and what is measured in
:mod:`rl4dialog.experiments.improvement.feedback_loop`. All results are in FOLDER/results.json, and an interrupted
command continues.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from rl4dialog.core.config import text_config
from rl4dialog.core.errors import ConfigError, RunFolderError
from rl4dialog.core.feedback_queue import read_pairs
from rl4dialog.data.small_talk.person import SimulatedPerson
from rl4dialog.experiments.improvement.feedback_loop import LoopResult, measure, write_votes
from rl4dialog.experiments.improvement.plan import make_plan
from rl4dialog.experiments.improvement.running import improve
from rl4dialog.experiments.own_process import run_command
from rl4dialog.functional.bootstrap import Estimate
from rl4dialog.inference.model_comparison import compare_models
from rl4dialog.inference.saved_run import read_run_config
from rl4dialog.runs.run_folder import write_json


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn from the votes of a simulated person.")
    parser.add_argument("--run", type=Path, required=True, help="run on small_talk to improve")
    parser.add_argument("--output", type=Path, required=True, help="output folder")
    parser.add_argument("--n_votes", type=int, nargs="+", default=[100, 300, 1000], help="numbers of votes to try")
    parser.add_argument("--n_held_out", type=int, default=500, help="pairs to measure reward models with")
    parser.add_argument("--temperature", type=float, default=0.5, help="noise of choices (default: 0.5)")
    parser.add_argument("--error_rate", type=float, default=0.1, help="share of wrong choices (default: 0.1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of pairs and person (default: 0)")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="as for rl4dialog improve")
    args = parser.parse_args()
    if args.temperature < 0 or not 0 <= args.error_rate <= 1:
        raise ConfigError("--temperature must be at least 0, and --error_rate from 0 to 1")
    run, output = args.run.expanduser().absolute(), args.output.expanduser().absolute()
    output.mkdir(parents=True, exist_ok=True)
    voted = _pairs(run, "train", max(args.n_votes), args.seed, output / "pairs.jsonl")
    held_out = _pairs(run, "val", args.n_held_out, args.seed, output / "held_out_pairs.jsonl")
    config, results = text_config(read_run_config(run)), []
    for n in args.n_votes:
        votes, improved = output / f"votes_{n}.jsonl", output / f"improved_{n}"
        write_votes(voted, n, SimulatedPerson(args.temperature, args.error_rate, args.seed), votes)
        # A reward model no better than a coin is a result here.
        plan = make_plan(run, config, votes, improved, force=True, overrides=args.overrides)
        improve(plan, compare_models)
        results.append(measure(plan, n, read_pairs(held_out)))
        write_json(output / "results.json", [asdict(result) for result in results])
    print(_table(results))


def _pairs(run: Path, split: str, n: int, seed: int, output: Path) -> Path:
    """Pairs of replies of the run's model, unless the file exists."""
    if not output.exists():
        arguments = ["--run", str(run), "--split", split, "--n", str(n), "--seed", str(seed), "--output", str(output)]
        if code := run_command(["select", *arguments]):
            raise RunFolderError(f"rl4dialog select ended with exit code {code}")
    return output


def _table(results: list[LoopResult]) -> str:
    lines = ["| votes | accuracy on other pairs | win rate | change of utility | KL |", "|---|---|---|---|---|"]
    for each in results:
        cells = [_interval(found) for found in (each.accuracy, each.win_rate, each.utility)]
        lines.append(f"| {each.n_votes} | {' | '.join(cells)} | {each.kl:.3f} |")
    return "\n".join(lines)


def _interval(found: Estimate) -> str:
    interval = found.interval
    return f"{found.value:.3f}" + (f" ({interval.low:.3f} to {interval.high:.3f})" if interval is not None else "")


if __name__ == "__main__":
    main()
