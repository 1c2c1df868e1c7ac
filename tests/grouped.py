"""Algorithms that compare replies to one prompt, on a tiny model."""

from __future__ import annotations

import copy
from typing import Any

from rows import rows_of
from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import make_env, make_tokenizer, policy_class_of

from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.rollouts.kl_controllers import FixedKLController
from rl4dialog.text.end_of_turn import EndOfTurn

BETA = 0.3
"""Coefficient of the KL penalty."""


def make_group_algorithm(
    algorithm: Any, model: Any, n_envs: int = 8, env_kwargs: Any = None, generation_kwargs: Any = None, **kwargs: Any
) -> Any:
    """An algorithm on groups of four replies, which differ in length."""
    tokenizer = make_tokenizer()
    ends = EndOfTurn(tokenizer, [0, 8, 12])
    settings: dict[str, Any] = {"n_generations": 4, "n_epochs": 1, "batch_size": 10**6, "learning_rate": 1e-2, **kwargs}
    return algorithm(
        policy_class_of(model),
        DummyVecEnv([lambda: UtteranceView(make_env(tokenizer, end_of_turn=ends, **(env_kwargs or {})))] * n_envs),
        n_steps=8,
        policy_kwargs={
            "model": copy.deepcopy(model),
            "end_of_turn": ends,
            "critic": "none",
            "generation_kwargs": generation_kwargs,
        },
        kl_controller=FixedKLController(BETA),
        seed=0,
        device="cpu",
        max_grad_norm=1e9,
        **settings,
    )


def collect(algorithm: Any, reset: bool = True) -> list[Any]:
    """The rows of a rollout."""
    _, callback = algorithm._setup_learn(10**6, reset_num_timesteps=reset)
    algorithm.collect_rollouts(algorithm.env, callback, algorithm.rollout_buffer, algorithm.n_steps)
    return rows_of(algorithm.rollout_buffer)


def groups_of(utterances: list[Any]) -> dict[int, list[Any]]:
    """Rows by group."""
    groups: dict[int, list[Any]] = {}
    for utterance in utterances:
        groups.setdefault(utterance.group, []).append(utterance)
    return groups
