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
from scipy import stats

from rl4dialog.core.config import text_config
from rl4dialog.core.errors import ConfigError, DataError, nearest_hint
from rl4dialog.features.experiments.quality import cross_play
from rl4dialog.features.experiments.quality.comparison import Ledger
from rl4dialog.inference.loading import read_run_config
from rl4dialog.training.building.texts import build_data

Scores = dict[tuple[str, str, str], float]  # by world, split and sample


def clustered(differences: list[float], goals: list[str]) -> str:
    """The mean, with a 95 % interval from the sums of what is left over in each goal (Student's t)."""
    values, sums = np.array(differences), defaultdict[str, float](float)
    for difference, goal in zip(values - values.mean(), goals, strict=True):
        sums[goal] += difference
    n = len(sums)
    error = np.sqrt(n / (n - 1) * sum(total**2 for total in sums.values())) / len(values)
    half = stats.t.ppf(0.975, n - 1) * error
    p = 2 * stats.t.sf(abs(values.mean()) / error, n - 1) if error else float("nan")
    text = f"{values.mean():.3f} [{values.mean() - half:.3f}, {values.mean() + half:.3f}]"
    return f"{text}, p {p:.3f}, {len(values)} samples of {n} goals"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", required=True, help="plan with cross_play")
    parser.add_argument("--output_path", type=Path, required=True, help="output of rl4dialog benchmark")
    parser.add_argument("--partner", required=True, help="name of the partner in the plan")
    parser.add_argument("--goal", required=True, help="key of the goal in the meta data of samples")
    parser.add_argument("--metric", default="conversation/right_call", help="metric of conversations")
    args = parser.parse_args()
    ledger = Ledger(args.plan, [], args.output_path.absolute())
    plan, scores, goals = ledger.plan, defaultdict[str, Scores](dict), dict[tuple[str, str, str], str]()
    if plan.cross_play is None or args.partner not in plan.cross_play.partners:
        raise ConfigError(f"--partner: {args.plan} has no cross_play with {args.partner!r}")
    for world in plan.compared_in:
        done = [run for run in ledger.runs if run.world == world and run.is_done(ledger.folder(run))]
        rows = {run.label: [ledger.folder(other) for other in done if other.label == run.label] for run in done}
        agents = cross_play.agents_of(plan.cross_play, rows, ledger.output, world)
        for agent, folders in agents.runs.items():
            places = [item for run in folders for item in agents.places(run).items() if item[0][0] == args.partner]
            if not all((place / "metrics.json").is_file() for _, place in places):
                continue
            if not any(key[0] == world for key in goals):
                data = build_data(text_config(read_run_config(folders[0], trust=True)))
                for part in plan.cross_play.splits:
                    for sample in data.samples(part):
                        if args.goal not in (about := sample.meta_data or {}):
                            raise DataError(f"--goal: no {args.goal!r} in meta data{nearest_hint(args.goal, about)}")
                        goals[world, part, str(sample.id)] = json.dumps(about[args.goal], sort_keys=True, default=str)
            held = defaultdict[tuple[str, str, str], list[float]](list)
            for (_, split, _), place in places:
                found = cross_play.conversations(place)
                for id, score in zip(found.sample_ids, found.scores[args.metric], strict=True):
                    held[world, split, str(id)].append(score)
            scores[agent] |= {key: float(np.mean(values)) for key, values in held.items()}
    pairs = [tuple(pair) for pair in plan.comparisons]
    pairs += [(agent, plan.reference) for agent in scores if plan.reference not in (None, agent)]
    for one, other in dict.fromkeys(pairs):
        if not (both := [key for key in scores[one] if key in scores[other]]):
            continue
        print(f"{one} - {other}")
        for world in ("", *dict.fromkeys(key[0] for key in both)):
            keys = [key for key in both if world in ("", key[0])]
            text = clustered([scores[one][key] - scores[other][key] for key in keys], [goals[key] for key in keys])
            print(f"  {world or 'all'}: {text}")


if __name__ == "__main__":
    script.run(main)
