"""Causes why a run did not improve, each from the logs of a run that shows it alone."""

import numpy as np
import pytest
from run_files import prediction, write_json, write_lines, write_run

from rl4dialog.runs import causes as found_causes
from rl4dialog.runs.reading import read_run
from rl4dialog.runs.report.metrics import before_and_after
from rl4dialog.runs.run_folder import WARNINGS_FILE

RISING, FLAT = np.linspace(0.3, 0.5, 9), np.array([0.3, 0.33, 0.27, 0.31, 0.29, 0.32, 0.28, 0.3, 0.31])
ALG = {"args": {"learning_rate": 0.0003, "n_steps": 64, "target_kl": 0.05}, "kl_div": {"target_kl": 0.2}}
GOOD = dict(
    rewards=RISING, spread=0.4, before=0.3, gain=0.2, n_test=400, kl=0.1, update_kl=0.05, alg=ALG, warm_start=None
)


def run_of(folder, *, rewards, spread, before, gain, n_test, kl, update_kl, **config):
    """A run whose test replies earn 0 or 1, ``before`` on average; the reward of other replies changes by ``gain``."""
    write_run(folder, n_iters=len(rewards), **config)
    rollouts = [
        {"iteration": i, "rollout/task_reward": r, "rollout/task_reward_std": spread, "rollout/n_episodes": 200}
        | {"rollout/kl": kl * i / len(rewards)}
        for i, r in enumerate(rewards, start=1)
    ]
    write_lines(folder / "rollout_info.jsonl", rollouts)
    write_lines(folder / "training_info.jsonl", [{"iteration": 1, "train/update_kl": update_kl}])
    first = np.arange(n_test) < before * n_test
    for epoch, scores in ((0, first), (len(rewards), np.roll(first, n_test // 3) + gain)):
        replies = [prediction(i, "reply", reward=float(score)) for i, score in enumerate(scores)]
        write_json(folder / f"epoch_{epoch}_test_split_predictions.json", replies)
    return read_run(folder)


def causes(run):
    return found_causes.causes(run, *before_and_after(run, "test"))


CASES = {
    "saturated reward": (
        dict(rewards=[0.95, 0.9, 0.95] * 3, spread=0.2, before=0.9),
        "replies already earned 0.95 of at most 1",
        "reward_fn:",
    ),
    "memorised warm start": (
        dict(rewards=RISING + 0.3, warm_start={"n_epochs": 9}),
        "earned 0.6 on training prompts, but 0.3 on others",
        "warm_start.n_epochs",
    ),
    "KL out of hand": (
        dict(rewards=[0.5, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.7, 0.7], update_kl=0.4),
        "moved the policy by 0.4 nats per token, with a target of 0.05, and the reward of rollouts fell from 0.5 to",
        "alg.args.learning_rate: a third of 0.0003",
    ),
    "too few samples": (
        dict(gain=0.0, n_test=60),
        "the reward of rollouts rose by 0.15, but 60 test",
        "held_out_share",
    ),
    "reward noise": (dict(rewards=FLAT, gain=0.0), "from 0.3 to 0.297", "alg.args.n_steps: four times 64"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_cause_is_named_with_what_shows_it_and_one_setting(name, tmp_path):
    changed, shown, setting = CASES[name]
    (found,) = causes(run_of(tmp_path, **GOOD | {"gain": 0.0} | changed))
    assert found.name == name and shown in found.shown and setting in found.change


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_improved_has_no_cause(name, tmp_path):
    assert not causes(run_of(tmp_path, **GOOD | CASES[name][0] | {"gain": 0.9, "n_test": 400}))


def test_replies_that_equal_references_leave_nothing_to_gain_and_are_no_noise(tmp_path):
    run = run_of(tmp_path, **GOOD | {"rewards": 0.99 + FLAT / 1000, "spread": 1e-4, "before": 0.99, "gain": 0.0})
    assert [each.name for each in causes(run)] == ["reward noise"]
    write_lines(tmp_path / WARNINGS_FILE, [{"name": "equal_to_references", "message": "60 of 62 equal"}])
    (found,) = causes(read_run(tmp_path))
    assert (found.name, found.shown) == ("saturated reward", "before training, 60 of 62 equal")


def test_few_test_samples_are_a_cause_of_their_own(tmp_path):
    (found,) = causes(run_of(tmp_path, **GOOD | {"n_test": 40}))
    assert found.name == "too few samples" and found.shown == "40 test samples; 50 are needed"


def test_the_kl_alone_is_no_cause_and_has_a_limit_without_a_target(tmp_path):
    assert not causes(run_of(tmp_path / "rises", **GOOD | {"gain": 0.0, "update_kl": 0.4}))
    fallen = GOOD | CASES["KL out of hand"][0] | {"gain": 0.0, "update_kl": 0.0, "alg": {"args": ALG["args"]}}
    assert not causes(run_of(tmp_path / "near", **fallen | {"kl": 0.9}))
    (found,) = causes(run_of(tmp_path / "far", **fallen | {"kl": 3.0}))
    assert found.shown.startswith("the KL to the reference reached 3 nats per token, and the reward")


def test_logs_without_rollouts_or_with_too_few_show_nothing(tmp_path):
    assert not causes(run_of(tmp_path / "two", **GOOD | {"rewards": [0.3, 0.2], "n_test": 10}))
    assert not causes(read_run(write_run(tmp_path / "old", n_iters=9)))
