"""The loop of votes, reward model, PPO and comparison, with a simulated person whose preferences are known.

    python scripts/feedback_loop.py --run RUN --n_votes 100 300 1000 --ceiling --output runs/votes
    python scripts/feedback_loop.py --run RUN --n_votes 100 300 --strategy gap --without_ppo --output runs/by_gap

RUN is a run on small_talk. The person of :mod:`rl4dialog.data.small_talk.pool` chooses between pairs of replies of
its model. What is learned from the choices is measured by the person's true utility, which is trained on only to see
how much could be gained. All results are in results.json of the output folder, and an interrupted command continues.

With a strategy other than random, the first number of votes is about random pairs. The pairs that are added for each
further number are selected with the reward model that was learned from those before.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import script
from numpy.typing import NDArray

from rl4dialog.core.config import text_config
from rl4dialog.core.errors import ConfigError, DataError, RunFolderError
from rl4dialog.core.feedback import QueuedReplies, append_feedback, read_pairs, write_queue
from rl4dialog.core.files import write_json
from rl4dialog.data.dialogue_text import dialogue_text
from rl4dialog.data.ratings import judged_dialogue
from rl4dialog.features.feedback.improvement import (
    COMPARISON,
    POLICY,
    REWARD_MODEL,
    Plan,
    improve,
    make_plan,
    read_verdict,
    train_stage,
    write_files,
)
from rl4dialog.features.feedback.queue_selection import STRATEGIES
from rl4dialog.features.feedback.report import KL
from rl4dialog.features.feedback.simulated_person import BEST_N_WORDS, PER_WORD, QUESTION, SimulatedPerson, utility
from rl4dialog.functional.statistics import Estimate
from rl4dialog.inference.loading import read_run_config
from rl4dialog.runs.reading import Predictions, pair, read_run
from rl4dialog.runs.report.metrics import sample_estimate
from rl4dialog.scores.reward_models import KEY, load_reward_model
from rl4dialog.training.own_process import run_command

_ARGUMENTS = ("run", "strategy", "n_held_out", "temperature", "error_rate", "seed")


@dataclass(frozen=True)
class Point:
    """Mean score of the reward model and mean true utility, at an evaluation of the policy's validation prompts."""

    iteration: int
    score: float
    utility: float


@dataclass(frozen=True)
class PolicyResult:
    """What PPO made of a reward."""

    win_rate: Estimate
    utility: Estimate
    kl: float
    curve: list[Point] = field(default_factory=list)


@dataclass(frozen=True)
class LoopResult:
    """What was learned from a number of votes."""

    n_votes: int | None
    verdict: str | None = None
    accuracy: Estimate | None = None
    policy: PolicyResult | None = None


_N_WORDS = {"min_length": BEST_N_WORDS, "max_length": BEST_N_WORDS, "per_word": PER_WORD}
UTILITY_PARTS = [
    {"id": "regex", "weight": QUESTION, "args": {"pattern": r"\?"}},
    {"id": "length_penalty", "args": _N_WORDS},
]
UTILITY_REWARD = {"id": "composite", "args": {"rewards": UTILITY_PARTS}}
"""The person's utility as a ``reward_fn``, to measure how much of it could be gained."""


def write_votes(queue: Path, n: int, person: SimulatedPerson, output: Path) -> None:
    """Let a person choose between the first pairs of a queue, unless the file exists."""
    pairs = read_pairs(queue)
    if len(pairs) < n:
        raise DataError(f"{queue} has {len(pairs)} pairs, fewer than {n} votes; choose another output folder")
    if output.exists():
        return
    partial = output.with_suffix(".tmp")
    partial.unlink(missing_ok=True)
    for each in pairs[:n]:
        append_feedback(partial, each.chosen(0 if person.prefers_first(*(reply.text for reply in each.replies)) else 1))
    partial.replace(output)


def measure_reward_model(plan: Plan, n_votes: int, held_out: Sequence[QueuedReplies]) -> LoopResult:
    """Measure the reward model of an improvement by the true utility of pairs about which nobody voted."""
    folder = plan.improvable.output / REWARD_MODEL
    return LoopResult(n_votes, str(read_verdict(folder, plan.votes)), accuracy_of(folder, held_out))


def measure_policy(plan: Plan) -> PolicyResult:
    """Measure PPO in a complete improvement by the true utility."""
    output = plan.improvable.output
    before, after = pair(*(_predictions(output / COMPARISON, "test", epoch) for epoch in (0, 1)))
    changes = _utilities(after.replies) - _utilities(before.replies)
    wins, change = sample_estimate((changes > 0) + 0.5 * (changes == 0)), sample_estimate(changes)
    kl = read_run(output / COMPARISON).metrics["test"][1][KL]
    return PolicyResult(wins, change, kl, _curve(output / POLICY))


def accuracy_of(reward_model: Path, pairs: Sequence[QueuedReplies]) -> Estimate:
    """Share of pairs that a reward model ranks as the true utility does, without pairs of equal utility."""
    model = load_reward_model(str(reward_model), "reply", 64, "feedback_loop")
    gaps = np.subtract(*(_utilities([each.replies[i].text for each in pairs]) for i in (0, 1)))
    chosen = [[judged_dialogue(each.chosen(i), each.replies[i].text) for each in pairs] for i in (0, 1)]
    texts = [[dialogue_text(dialogue, model.card.context_size) for dialogue in side] for side in chosen]
    scores = np.subtract(*(np.asarray(model.scores(side)) for side in texts))
    right = (scores * gaps > 0) + 0.5 * (scores == 0)
    return sample_estimate(right[gaps != 0])


def _curve(policy: Path) -> list[Point]:
    run, points = read_run(policy), []
    for epoch in run.epochs("val"):
        found = _predictions(policy, "val", epoch)
        points.append(Point(epoch, float(found.scores[KEY].mean()), float(_utilities(found.replies).mean())))
    return points


def _predictions(folder: Path, split: str, epoch: int) -> Predictions:
    found = read_run(folder).predictions(split, epoch)
    if found is None:
        raise DataError(f"{folder} has no predictions of split {split!r} after iteration {epoch}")
    return found


def _utilities(replies: Sequence[str]) -> NDArray[np.float64]:
    return np.array([utility(reply) for reply in replies], dtype=float)


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
            train_stage(plan.stages[0])
        else:
            improve(plan)
        found = measure_reward_model(plan, n, held_out)
        results.append(found if args.without_ppo else replace(found, policy=measure_policy(plan)))
        _write(args, results)
    if args.ceiling:
        reward = f"{POLICY}.reward_fn={json.dumps(UTILITY_REWARD)}"
        plan = _plan(args, numbers[0], "improved_on_utility", [*args.overrides, reward])
        improve(plan)
        results.append(LoopResult(None, policy=measure_policy(plan)))
        _write(args, results)
    print(_table(results))


def _check_same_arguments(args: argparse.Namespace) -> None:
    """Refuse a folder with pairs, votes or models of other arguments."""
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
    script.run(main)
