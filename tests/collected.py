"""Algorithms with a tiny model, before and after their first rollout."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.vec_env import DummyVecEnv
from tiny import make_env, make_gpt2, make_tokenizer, policy_class_of

from rl4dialog.algorithms.on_policy.ppo import PPO
from rl4dialog.envs.utterance_view import UtteranceView


def make(
    algorithm: Any = PPO, critic: str = "separate", n_steps: int = 16, env_kwargs: Any = None, **kwargs: Any
) -> Any:
    tokenizer = make_tokenizer()
    model = make_gpt2(tokenizer)
    return algorithm(
        policy_class_of(model),
        DummyVecEnv([lambda: UtteranceView(make_env(tokenizer, **(env_kwargs or {})))] * 2),
        n_steps=n_steps,
        policy_kwargs={"model": model, "end_of_turn": make_env(tokenizer).end_of_turn, "critic": critic},
        seed=0,
        device="cpu",
        **kwargs,
    )


def collected(algorithm: Any = PPO, **kwargs: Any) -> Any:
    """An algorithm that has a rollout to train on."""
    trained = make(algorithm, **kwargs)
    _, callback = trained._setup_learn(10**6)
    trained.collect_rollouts(trained.env, callback, trained.rollout_buffer, trained.n_steps)
    return trained
