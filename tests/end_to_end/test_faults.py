"""Runs in which rewards fail."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from runs import SHORT, lines, make_config, run_folder, train, without_times

# Fails every so many calls.
FAILING = """
import itertools
from rl4dialog import RewardFunctionRegistry

calls = itertools.count(1)

@RewardFunctionRegistry.register("failing")
def failing(prompt_text, gen_text, ref_texts, meta_info, every):
    if next(calls) % every == 0:
        return float("nan")
    return sum(c.isalpha() for c in gen_text) / (1 + len(gen_text))
"""
SMALL = {
    **SHORT,
    "train_evaluation__metrics": [],
    "train_evaluation__eval_every": 9,
    "train_evaluation__score_predictions": False,
}


def records(tmp_path: Path, name: str = "rollout_info.jsonl") -> list[dict[str, Any]]:
    """Lines of a run without what was measured of the machine."""
    return [without_times(line) for line in lines(run_folder(tmp_path) / name)]


@pytest.mark.parametrize(("algorithm", "every"), [("ppo", 10), ("rloo", 2)])
def test_masked_failures_are_counted_and_the_rest_is_learned_from(tmp_path: Path, algorithm: str, every: int) -> None:
    (tmp_path / "mine.py").write_text(FAILING, encoding="utf-8")
    reward = {"id": "failing", "args": {"every": every}, "on_error": "mask"}
    config = make_config(tmp_path, imports=["./mine.py"], reward_fn=reward, **SMALL)
    config["env"]["n_envs"] = 4
    config["alg"]["id"] = algorithm
    config["alg"]["args"] |= {"n_steps": 60} | ({"n_generations": 2} if algorithm == "rloo" else {})
    assert train(tmp_path, config) == 0
    rollouts = records(tmp_path)
    n_masked = sum(line["rollout/masked_rewards"] for line in rollouts)
    n_calls = n_masked + sum(line["rollout/n_episodes"] for line in rollouts)
    assert n_masked == n_calls // every > 0
    assert all(line["rollout/tokens"] >= 240 for line in rollouts), "what is masked does not count"
    for line in records(tmp_path, "training_info.jsonl"):
        assert all(math.isfinite(value) for value in line.values())
