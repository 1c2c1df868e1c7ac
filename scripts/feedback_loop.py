"""The loop of votes, reward model, PPO and comparison, with a simulated person whose preferences are known.

    python scripts/feedback_loop.py --run RUN --n_votes 100 300 1000 --ceiling --output runs/votes
    python scripts/feedback_loop.py --run RUN --n_votes 100 300 --strategy gap --without_ppo --output runs/by_gap

RUN is a run on small_talk. The person is described in :mod:`rl4dialog.data.small_talk.pool`, and what is measured in
:mod:`rl4dialog.experiments.improvement.feedback_loop`. All results are in results.json of the output folder, and an
interrupted command continues.

With a strategy other than random, the first number of votes is about random pairs. The pairs that are added for each
further number are selected with the reward model that was learned from those before.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rl4dialog.core.config import text_config
from rl4dialog.core.errors import ConfigError, RunFolderError
from rl4dialog.core.feedback import read_pairs, write_queue
from rl4dialog.data.small_talk.pool import UTILITY_REWARD, SimulatedPerson
from rl4dialog.experiments.improvement.feedback_loop import (
    LoopResult,
    measure_policy,
    measure_reward_model,
    write_votes,
)
from rl4dialog.experiments.improvement.plan import Plan, make_plan, write_files
from rl4dialog.experiments.improvement.running import improve, train_stage
from rl4dialog.experiments.improvement.stage_configs import POLICY, REWARD_MODEL
from rl4dialog.experiments.own_process import run_command
from rl4dialog.functional.statistics import Estimate
from rl4dialog.inference.model_comparison import compare_models
from rl4dialog.inference.queue_selection import STRATEGIES
from rl4dialog.inference.saved_run import read_run_config
from rl4dialog.runs.run_folder import write_json

_ARGUMENTS = ("run", "strategy", "n_held_out", "temperature", "error_rate", "seed")


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn from the votes of a simulated person.")
    parser.add_argument("--run", type=Path, required=True, help="run on small_talk to improve")
    parser.add_argument("--output", type=Path, required=True, help="output folder")
    parser.add_argument("--n_votes", type=int, nargs="+", default=[100, 300, 1000], help="numbers of votes to try")
    parser.add_argument(
        "--strategy", default="random", choices=STRATEGIES, help="how pairs are selected after the first number"
    )
    parser.add_argument("--ceiling", action="store_true", help="also train PPO on the utility itself")
    parser.add_argument("--without_ppo", action="store_true", help="only measure reward models")
    parser.add_argument("--n_held_out", type=int, default=500, help="pairs to measure reward models with")
    parser.add_argument("--temperature", type=float, default=0.5, help="noise of choices (default: 0.5)")
    parser.add_argument("--error_rate", type=float, default=0.1, help="share of wrong choices (default: 0.1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of pairs and person (default: 0)")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="as for rl4dialog improve")
    args = parser.parse_args()
    if args.temperature < 0 or not 0 <= args.error_rate <= 1:
        raise ConfigError("--temperature must be at least 0, and --error_rate from 0 to 1")
    if args.ceiling and args.without_ppo:
        raise ConfigError("--ceiling is PPO on the utility; remove --ceiling or --without_ppo")
    args.run, args.output = args.run.expanduser().absolute(), args.output.expanduser().absolute()
    _check_same_arguments(args)
    _select(args, "held_out_pairs.jsonl", args.n_held_out, "--split", "val")
    held_out = read_pairs(args.output / "held_out_pairs.jsonl")
    results: list[LoopResult] = []
    numbers = sorted(args.n_votes)
    for before, n in zip([None, *numbers], numbers, strict=False):
        _choose_pairs(args, n, before)
        plan = _plan(args, n, f"improved_{n}", args.overrides)
        if args.without_ppo:
            write_files(plan)
            train_stage(plan, plan.stages[0])
        else:
            improve(plan, compare_models)
        found = measure_reward_model(plan, n, held_out)
        results.append(found if args.without_ppo else replace(found, policy=measure_policy(plan)))
        _write(args, results)
    if args.ceiling:
        reward = f"{POLICY}.reward_fn={json.dumps(UTILITY_REWARD)}"
        plan = _plan(args, numbers[0], "improved_on_utility", [*args.overrides, reward])
        improve(plan, compare_models)
        results.append(LoopResult(None, policy=measure_policy(plan)))
        _write(args, results)
    print(_table(results))


def _check_same_arguments(args: argparse.Namespace) -> None:
    """Refuse a folder with pairs, votes or models of other arguments.

    Raises:
        ConfigError: If it has them.
    """
    file, now = args.output / "arguments.json", {name: str(vars(args)[name]) for name in _ARGUMENTS}
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        for name in _ARGUMENTS:
            if before[name] != now[name]:
                raise ConfigError(
                    f"{args.output} was made with --{name} {before[name]}, not {now[name]}; choose another --output"
                )
    args.output.mkdir(parents=True, exist_ok=True)
    write_json(file, now)


def _select(args: argparse.Namespace, name: str, n: int, *options: str) -> None:
    """Write a queue of pairs of replies of the run's model, unless the file exists."""
    queue = args.output / name
    if queue.exists():
        return
    arguments = ["--run", str(args.run), "--n", str(n), "--seed", str(args.seed), "--output", str(queue)]
    if code := run_command(["select", *arguments, *options]):
        raise RunFolderError(f"rl4dialog select ended with exit code {code}")


def _choose_pairs(args: argparse.Namespace, n: int, before: int | None) -> None:
    """Write the queue about which the person votes: random pairs, or the earlier ones and those selected with them."""
    if args.strategy == "random" or before is None:
        _select(args, "pairs.jsonl", max(args.n_votes) if args.strategy == "random" else n)
        queue = read_pairs(args.output / "pairs.jsonl")[:n]
    else:
        added = f"pairs_{before}_to_{n}.jsonl"
        model = args.output / f"improved_{before}" / REWARD_MODEL
        # Some of the selected pairs may be known already.
        _select(args, added, n, "--strategy", args.strategy, "--reward_model", str(model))
        known = read_pairs(args.output / f"pairs_{before}.jsonl")
        ids = {each.id for each in known}
        queue = [*known, *(each for each in read_pairs(args.output / added) if each.id not in ids)][:n]
    write_queue(args.output / f"pairs_{n}.jsonl", queue)


def _plan(args: argparse.Namespace, n: int, name: str, overrides: Sequence[str]) -> Plan:
    queue, votes = args.output / f"pairs_{n}.jsonl", args.output / f"votes_{n}.jsonl"
    write_votes(queue, n, SimulatedPerson(args.temperature, args.error_rate, args.seed), votes)
    # A reward model no better than a coin is a result here.
    config = text_config(read_run_config(args.run))
    return make_plan(args.run, config, votes, args.output / name, force=True, overrides=overrides)


def _write(args: argparse.Namespace, results: Sequence[LoopResult]) -> None:
    write_json(args.output / "results.json", [asdict(result) for result in results])


def _table(results: Sequence[LoopResult]) -> str:
    lines = ["| votes | accuracy on other pairs | win rate | change of utility | KL |", "|---|---|---|---|---|"]
    for each in results:
        found = [each.accuracy] + ([each.policy.win_rate, each.policy.utility] if each.policy else [None, None])
        cells = [_interval(estimate) for estimate in found]
        votes = "none: PPO on the utility" if each.n_votes is None else each.n_votes
        lines.append(f"| {votes} | {' | '.join(cells)} | {f'{each.policy.kl:.3f}' if each.policy else ''} |")
    return "\n".join(lines)


def _interval(found: Estimate | None) -> str:
    if found is None:
        return ""
    interval = found.interval
    return f"{found.value:.3f}" + (f" ({interval.low:.3f} to {interval.high:.3f})" if interval is not None else "")


if __name__ == "__main__":
    main()
