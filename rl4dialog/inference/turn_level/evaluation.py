"""Evaluates an agent by episodes, as its run does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rl4dialog.core.seeding import derive_seed
from rl4dialog.data.pool import check_split
from rl4dialog.inference.offline_evaluation import check_is_new, make_folder, print_metrics
from rl4dialog.inference.turn_level.loading import TurnLevelAgent
from rl4dialog.runs.report.statistics import mean_intervals
from rl4dialog.runs.run_folder import write_json
from rl4dialog.training.turn_level.evaluation import evaluate_episodes, mean_scores
from rl4dialog.training.turn_level.players import RulePlayer, player_names


def evaluate_agent(agent: TurnLevelAgent, split: str, folder: Path, about: Mapping[str, Any]) -> dict[str, float]:
    """Evaluate an agent, write ``metrics.json`` and ``predictions.json``, and print a table.

    For the final policy of a run, the metrics are identical to those that the run logged. Beside them stand 95 %
    intervals over episodes, if there are at least ``MIN_SAMPLES``, and the metrics of the rule policy, if there is one.

    Args:
        agent: The agent.
        split: Split of the goals, for environments that have splits.
        folder: New folder for the results.
        about: Description of the evaluated policy, for ``metrics.json``.

    Returns:
        Score by metric key.
    """
    check_split(split)
    check_is_new(folder)
    settings, seed = agent.config.train_evaluation, derive_seed(agent.config.seed, "evaluation", split)
    envs = agent.envs(split)

    def held(player: Any) -> list[dict[str, Any]]:
        return evaluate_episodes(player, envs, settings.n_eval_episodes, settings.deterministic, seed)

    episodes = [{"split_name": split, **episode} for episode in held(agent.player(envs))]
    metrics = mean_scores(episodes)
    names = player_names(envs) if agent.policy is not None else ()
    players = {name: mean_scores(held(RulePlayer(envs, name))) for name in names}
    envs.close()
    scores = np.array([[episode.get(key, math.nan) for key in metrics] for episode in episodes], float)
    found = zip(metrics, mean_intervals(scores), strict=True)
    intervals = {key: interval for key, interval in found if interval is not None}
    make_folder(folder)
    write_json(folder / "predictions.json", episodes)
    counts = {"split": split, "n_samples": len(episodes)}
    limits = {key: [interval.low, interval.high] for key, interval in intervals.items()}
    write_json(
        folder / "metrics.json", {**about, **counts, "metrics": metrics, "intervals": limits, "players": players}
    )
    print_metrics(split, len(episodes), metrics, {}, folder, players=players, intervals=intervals)
    return metrics
