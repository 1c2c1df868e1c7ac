"""Runs in which workers die and rewards fail, beside the same runs without."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from runs import make_config, run_folder, train
from safetensors.torch import load_file

# Kills its process where a file says so, once for each file and never twice at the same reply. The run's own process,
# which scores the predictions of evaluations, lives.
DEADLY = """
import os, signal
from pathlib import Path
from rl4dialog import RewardFunctionRegistry

@RewardFunctionRegistry.register("deadly")
def deadly(prompt_text, gen_text, ref_texts, meta_info, armed, spared):
    died_here = Path(armed).parent / f"died_{abs(hash(gen_text))}"
    for path in [] if os.getpid() == spared or died_here.exists() else Path(armed).iterdir():
        died_here.touch()
        path.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return sum(c.isalpha() for c in gen_text) / (1 + len(gen_text))
"""

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


def deadly_run(tmp_path: Path, n_deaths: int) -> int:
    armed = tmp_path / "armed"
    armed.mkdir(parents=True)
    for number in range(n_deaths):
        (armed / str(number)).touch()
    mine = tmp_path.parent / "mine.py"
    mine.write_text(DEADLY, encoding="utf-8")
    reward = {"id": "deadly", "args": {"armed": str(armed), "spared": os.getpid()}}
    config = make_config(tmp_path, imports=[str(mine)], reward_fn=reward, train_evaluation__n_iters=3, **SMALL)
    config["env"] |= {"n_envs": 4, "vec_env": "blocks", "n_workers": 2, "on_worker_death": "restart"}
    return train(tmp_path, config)


def test_run_whose_workers_die_gives_what_it_gives_without(tmp_path: Path) -> None:
    for name, n_deaths in (("quiet", 0), ("deadly", 10)):
        assert deadly_run(tmp_path / name, n_deaths) == 0
    quiet, deadly = records(tmp_path / "quiet"), records(tmp_path / "deadly")
    assert [line.pop("rollout/worker_restarts") for line in quiet] == [0, 0, 0]
    restarts = [line.pop("rollout/worker_restarts") for line in deadly]
    assert restarts[-1] == 10 and restarts == sorted(restarts)
    assert deadly == quiet and len(quiet) == 3
    assert records(tmp_path / "deadly", "training_info.jsonl") == records(tmp_path / "quiet", "training_info.jsonl")
    weights = [load_file(run_folder(tmp_path / name) / "model" / "model.safetensors") for name in ("quiet", "deadly")]
    assert all((weights[0][key] == weights[1][key]).all() for key in weights[0])
    assert "(restart 10 of 10)" in (run_folder(tmp_path / "deadly") / "log.txt").read_text("utf-8")


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
