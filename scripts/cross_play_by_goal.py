"""Compare the agents of a cross-play by goal, where the worlds of a plan share goals.

    python scripts/cross_play_by_goal.py --plan task_configs/benchmarks/star_partners.yml --output_path runs/star \
        --partner stranger --goal gold_call

Prints the difference of each pair that the plan compares, and of each row and the reference, over all worlds and in
each world. Conversations about the same goal are not independent, so the errors behind the intervals and p are
clustered (Liang and Zeger 1986) by the entry of the samples' meta data that `--goal` names.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import script
from numpy.typing import NDArray
from scipy import stats

from rl4dialog.core.config import text_config
from rl4dialog.core.errors import ConfigError, DataError, nearest_hint
from rl4dialog.features.experiments.quality import cross_play
from rl4dialog.features.experiments.quality.comparison import Ledger, agents_in
from rl4dialog.functional.statistics import ratio_standard_error
from rl4dialog.inference.loading import read_run_config
from rl4dialog.training.building.texts import build_data


def clustered(differences: list[float], goals: list[str]) -> str:
    """The mean, with a 95 % interval (Student's t) whose error is that of sums over goals."""
    by_goal = defaultdict[str, list[float]](list)
    for difference, goal in zip(differences, goals, strict=True):
        by_goal[goal].append(difference)
    n, mean = len(by_goal), float(np.mean(differences))
    error = ratio_standard_error([*map(sum, by_goal.values())], [*map(len, by_goal.values())])
    half = stats.t.ppf(0.975, n - 1) * error
    p = 2 * stats.t.sf(abs(mean) / error, n - 1) if error else float("nan")
    return f"{mean:.3f} [{mean - half:.3f}, {mean + half:.3f}], p {p:.3f}, {len(differences)} samples of {n} goals"


def goals_of(run: Path, played: cross_play.CrossPlay, key: str) -> list[str]:
    """The goals of all samples, in the order of their scores."""
    data, found = build_data(text_config(read_run_config(run, trust=True))), list[str]()
    for split, ids in played.sample_ids.items():
        about = {str(sample.id): sample.meta_data or {} for sample in data.samples(split)}
        if missing := next((about[id] for id in ids if key not in about[id]), None):
            raise DataError(f"--goal: no {key!r} in meta data{nearest_hint(key, missing)}")
        found += [json.dumps(about[id][key], sort_keys=True, default=str) for id in ids]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", required=True, help="plan with cross_play")
    parser.add_argument("--output_path", type=Path, required=True, help="output of rl4dialog benchmark")
    parser.add_argument("--partner", required=True, help="name of the partner in the plan")
    parser.add_argument("--goal", required=True, help="key of the goal in the meta data of samples")
    parser.add_argument("--metric", default="conversation/right_call", help="metric of conversations")
    args = parser.parse_args()
    ledger = Ledger(args.plan, [], args.output_path.absolute())
    plan = ledger.plan
    if plan.cross_play is None or args.partner not in plan.cross_play.partners:
        raise ConfigError(f"--partner: {args.plan} has no cross_play with {args.partner!r}")
    scores, goals = dict[tuple[str, str], NDArray[np.float64]](), dict[str, list[str]]()  # by agent and world; by world
    for world in plan.compared_in:
        agents = agents_in(ledger, plan.cross_play, world)
        played = cross_play.read(agents, [args.metric])
        for agent, by_partner in played.scores[args.metric].items():
            scores[agent, world] = by_partner[args.partner].mean(axis=0)
            if world not in goals:
                goals[world] = goals_of(agents.runs[agent][0], played, args.goal)
    pairs = [tuple(pair) for pair in plan.comparisons]
    pairs += [(agent, plan.reference) for agent, _ in scores if plan.reference not in (None, agent)]
    for one, other in dict.fromkeys(pairs):
        if not (both := [world for world in goals if {(one, world), (other, world)} <= scores.keys()]):
            continue
        print(f"{one} - {other}")
        for name, worlds in {"all": both, **{world: [world] for world in both}}.items():
            differences = np.concatenate([scores[one, world] - scores[other, world] for world in worlds])
            print(f"  {name}: {clustered(differences.tolist(), [goal for world in worlds for goal in goals[world]])}")


if __name__ == "__main__":
    script.run(main)
