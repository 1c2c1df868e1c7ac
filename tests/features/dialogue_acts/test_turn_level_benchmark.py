"""The speed of runs in dialogue acts is measured on whole iterations, that with goals of turns on conversations."""

import pytest

from benchmarks.turn_level import (
    Training,
    conversations_per_second,
    environment_turns,
    gain_of_workers,
    one_process,
    training_turns,
)
from rl4dialog.core.config import parse_config
from rl4dialog.features.dialogue_acts.config import TurnLevelConfig

ACTS = {
    "task": {"id": "town_guide", "args": {"n_dialogues": 20}},
    "env": {"id": "dialogue_acts", "n_envs": 4},
    "warm_start": {"id": "bc", "args": {"n_epochs": 1}},
    "alg": {"id": "ppo", "args": {"n_steps": 8, "batch_size": 32}, "policy": {"id": "mlp_policy"}},
    "train_evaluation": {"n_iters": 1},
}
GOALS = {
    "datapool": {"id": "get_acquainted", "args": {"n_train": 40, "n_val": 5, "n_test": 5}},
    "speaker": {"id": "scripted"},
    "partner": {"id": "facts"},
    "env": {"id": "turn_goals", "args": {"goals": "get_acquainted", "max_turns": 2}},
    "reward_fn": {"id": "persona_ranking", "args": {"n_distractors": 4}},
    "alg": {"id": "dqn", "policy": {"id": "mlp_policy"}},
    "train_evaluation": {"n_iters": 1},
}


def checked(config):
    found = parse_config(config, "x.yml")
    assert isinstance(found, TurnLevelConfig)
    return found


@pytest.fixture
def acts():
    return checked(ACTS)


def test_an_iteration_has_the_turns_that_are_counted(acts):
    training = Training(one_process(acts))
    assert training.n_turns == 4 * 8
    training.iterate(lambda: 0.0)
    assert training._algorithm.num_timesteps == 2 * training.n_turns
    training.close()
    assert training_turns(acts, 1) > 0 and environment_turns(acts, 100) > 0


def test_workers_are_compared_with_one_process(acts):
    gains = gain_of_workers(acts, [1, 2], 1)
    assert gains.keys() == {1, 2} and all(gain > 0 for gain in gains.values())


def test_conversations_at_once_are_compared_with_one_at_a_time():
    assert min(conversations_per_second(checked(GOALS), 32, 3)) > 0
