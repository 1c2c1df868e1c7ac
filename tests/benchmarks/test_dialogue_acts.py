"""The speed of runs in dialogue acts is measured on whole iterations."""

from __future__ import annotations

from benchmarks.turn_level import Training, environment_turns, gain_of_workers, one_process, training_turns
from rl4dialog.core.config import TurnLevelConfig, parse_config

CONFIG = {
    "task": {"id": "town_guide", "args": {"n_dialogues": 20}},
    "env": {"id": "dialogue_acts", "n_envs": 4},
    "warm_start": {"id": "bc", "args": {"n_epochs": 1}},
    "alg": {"id": "ppo", "args": {"n_steps": 8, "batch_size": 32}, "policy": {"id": "mlp_policy"}},
    "train_evaluation": {"n_iters": 1},
}


def config() -> TurnLevelConfig:
    checked = parse_config(CONFIG, "x.yml")
    assert isinstance(checked, TurnLevelConfig)
    return checked


def test_an_iteration_has_the_turns_that_are_counted() -> None:
    training = Training(one_process(config()))
    assert training.n_turns == 4 * 8
    training.iterate(lambda: 0.0)
    assert training._algorithm.num_timesteps == 2 * training.n_turns
    training.close()


def test_training_is_slower_than_the_environment_alone() -> None:
    assert 0 < training_turns(config(), 1) < environment_turns(config(), 100)


def test_workers_are_compared_with_one_process() -> None:
    gains = gain_of_workers(config(), [1, 2], 1)
    assert gains.keys() == {1, 2}
    assert all(gain > 0 for gain in gains.values())
