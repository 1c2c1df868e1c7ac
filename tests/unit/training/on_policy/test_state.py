"""What a checkpoint remembers beside the weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import make_env, make_gpt2, make_tokenizer, policy_class_of

from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.training import policy_state
from rl4dialog.training.checkpoint import Checkpoint
from rl4dialog.training.on_policy.state import capture_state, restore_state


def make_algorithm() -> Any:
    tokenizer = make_tokenizer()
    env, model = make_env(tokenizer), make_gpt2(tokenizer)
    built: Any = PPO(
        policy_class_of(model),
        DummyVecEnv([lambda: UtteranceView(env)]),
        n_steps=16,
        batch_size=16,
        policy_kwargs={"model": model, "end_of_turn": env.end_of_turn},
        device="cpu",
        seed=0,
    )
    built._setup_learn(16)
    return built


def test_steps_that_were_left_out_in_a_row_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load_policy_weights", "load_optimizer"):
        monkeypatch.setattr(policy_state, name, lambda *_: None)
    stopped, resumed = make_algorithm(), make_algorithm()
    stopped.policy.gradient_steps.guard.n_in_a_row = 7
    restore_state(resumed, Checkpoint(tmp_path, json.loads(json.dumps(capture_state(stopped)))))
    assert resumed.policy.gradient_steps.guard.n_in_a_row == 7
