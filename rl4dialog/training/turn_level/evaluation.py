"""Evaluation of a policy by whole episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable import evaluation as maskable_evaluation
from stable_baselines3.common import evaluation as plain_evaluation
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv

from rl4dialog.training.random_state import random_states_kept

RETURN, LENGTH, SUCCESS = "episode/return", "episode/length", "episode/success"


@random_states_kept()
def evaluate_episodes(
    algorithm: Any, env: VecEnv, n_episodes: int, deterministic: bool, seed: int
) -> list[dict[str, Any]]:
    """Run episodes with stable-baselines3's ``evaluate_policy``.

    All random states are restored afterwards, so the number of evaluations does not affect training.

    Args:
        algorithm: The algorithm whose policy acts.
        env: Environments of numbered episodes.
        n_episodes: Number of episodes.
        deterministic: Whether to take the most likely actions. Otherwise the algorithm explores as in training.
        seed: Seed of the episodes and of sampled actions. The same seed gives the same episodes, if the policy does.

    Returns:
        The return and the length of each episode, and its success if the last info has ``is_success``, by number.
    """
    episodes: list[dict[str, Any]] = []

    def on_step(step: dict[str, Any], _: dict[str, Any]) -> None:
        if not step["done"]:
            return
        info, i = step["info"], step["i"]
        episode = {"sample_id": info["episode_number"]}
        episode |= {RETURN: float(step["current_rewards"][i]), LENGTH: int(step["current_lengths"][i])}
        if "is_success" in info:
            episode[SUCCESS] = float(info["is_success"])
        episodes.append(episode)

    of_actions = algorithm.action_space.np_random.bit_generator
    state_before = of_actions.state
    env.env_method("restart", seed)
    set_random_seed(seed)
    algorithm.action_space.seed(seed)
    module = maskable_evaluation if isinstance(algorithm, MaskablePPO) else plain_evaluation
    try:
        module.evaluate_policy(algorithm, env, n_episodes, deterministic, callback=on_step, warn=False)
    finally:
        algorithm.action_space.np_random.bit_generator.state = state_before
    return sorted(episodes, key=lambda episode: episode["sample_id"])


def mean_scores(episodes: list[dict[str, Any]]) -> dict[str, float]:
    """Mean of each score that all episodes have."""
    keys = [key for key in (RETURN, LENGTH, SUCCESS) if all(key in episode for episode in episodes)]
    return {key: float(np.mean([episode[key] for episode in episodes])) for key in keys}
