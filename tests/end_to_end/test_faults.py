"""Runs in which rewards fail."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from runs import make_config, run_folder, train

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
SMALL = {"train_evaluation__metrics": [], "train_evaluation__max_eval_samples": 1, "train_evaluation__eval_every": 9}


def records(tmp_path: Path, name: str = "rollout_info.jsonl") -> list[dict[str, Any]]:
    """Lines of a run without what was measured of the machine."""
    lines = (run_folder(tmp_path) / name).read_text(encoding="utf-8").splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(("time/", "memory/"))}
        for line in lines
    ]


@pytest.mark.parametrize(("algorithm", "every"), [("ppo", 100), ("rloo", 2)])
def test_masked_failures_are_counted_and_the_rest_is_learned_from(tmp_path: Path, algorithm: str, every: int) -> None:
    (tmp_path / "mine.py").write_text(FAILING, encoding="utf-8")
    reward = {"id": "failing", "args": {"every": every}, "on_error": "mask"}
    config = make_config(tmp_path, imports=["./mine.py"], reward_fn=reward, **SMALL)
    config["env"]["n_envs"] = 4
    config["alg"]["id"] = algorithm
    config["alg"]["args"] |= {"n_steps": 150} | ({"n_generations": 2} if algorithm == "rloo" else {})
    assert train(tmp_path, config) == 0
    rollouts = records(tmp_path)
    n_masked = sum(line["rollout/masked_rewards"] for line in rollouts)
    n_calls = n_masked + sum(line["rollout/n_episodes"] for line in rollouts)
    assert n_masked == n_calls // every > 0
    assert all(line["rollout/tokens"] >= 600 for line in rollouts), "what is masked does not count"
    for line in records(tmp_path, "training_info.jsonl"):
        assert all(math.isfinite(value) for value in line.values())
