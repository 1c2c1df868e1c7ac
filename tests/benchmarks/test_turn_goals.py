"""The speed of conversations with goals is measured on whole conversations."""

from __future__ import annotations

from benchmarks.turn_level import conversations_per_second
from rl4dialog.core.config import TurnLevelConfig, parse_config

CONFIG = {
    "datapool": {"id": "get_acquainted", "args": {"n_train": 40, "n_val": 5, "n_test": 5}},
    "speaker": {"id": "scripted"},
    "partner": {"id": "facts"},
    "env": {"id": "turn_goals", "args": {"goals": "get_acquainted", "max_turns": 2}},
    "reward_fn": {"id": "persona_ranking", "args": {"n_distractors": 4}},
    "alg": {"id": "dqn", "policy": {"id": "mlp_policy"}},
    "train_evaluation": {"n_iters": 1},
}


def test_conversations_at_once_are_faster_than_one_at_a_time() -> None:
    config = parse_config(CONFIG, "x.yml")
    assert isinstance(config, TurnLevelConfig)
    together, alone = conversations_per_second(config, 32, 3)
    assert together > alone > 0
