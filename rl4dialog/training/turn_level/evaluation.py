"""Evaluation of a policy by whole episodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable import evaluation as maskable_evaluation
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common import evaluation as plain_evaluation
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv

from rl4dialog.training.random_state import random_states_kept

RETURN, LENGTH, SUCCESS = "episode/return", "episode/length", "episode/success"
TASK, DOMAIN = "task/", "success_in_domain/"


@random_states_kept()
def evaluate_episodes(
    algorithm: Any, env: VecEnv, n_episodes: int, deterministic: bool, seed: int
) -> list[dict[str, Any]]:
    """Run episodes with stable-baselines3's ``evaluate_policy``.

    All random states are restored afterwards, so the number of evaluations does not affect training.

    Args:
        algorithm: The algorithm whose policy acts, its policy alone, or a `RulePlayer`.
        env: Environments of numbered episodes.
        n_episodes: Number of episodes.
        deterministic: Whether to take the most likely actions. Otherwise the algorithm explores as in training.
        seed: Seed of the episodes and of sampled actions. The same seed gives the same episodes, if the policy does.

    Returns:
        The return and the length of each episode, and its success if the last info has ``is_success``, by number. With
        an ``outcome`` in the last info, also its other numbers as ``task/...``; with ``domains``, the success in each
        domain as ``success_in_domain/...``; with a ``transcript``, its fields.
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
        episode |= {f"{TASK}{key}": value for key, value in info.get("outcome", {}).items() if key != "success"}
        episode |= {f"{DOMAIN}{name}": float(success) for name, success in info.get("domains", {}).items()}
        episodes.append(episode | info.get("transcript", {}))

    of_actions = algorithm.action_space.np_random.bit_generator
    state_before = of_actions.state
    env.env_method("restart", seed)
    set_random_seed(seed)
    algorithm.action_space.seed(seed)
    is_masked = isinstance(algorithm, (MaskablePPO, MaskableActorCriticPolicy))
    module: Any = maskable_evaluation if is_masked else plain_evaluation
    try:
        module.evaluate_policy(algorithm, env, n_episodes, deterministic, callback=on_step, warn=False)
    finally:
        algorithm.action_space.np_random.bit_generator.state = state_before
    return sorted(episodes, key=lambda episode: episode["sample_id"])


def mean_scores(episodes: list[dict[str, Any]]) -> dict[str, float]:
    """Mean of each score: the success if all episodes have one, and the numbers of task and domains where they exist.

    With numbers of a task and successes, ``task/turns_of_success`` is the mean length of successful episodes; NaN if
    there are none.
    """
    keys = [key for key in (RETURN, LENGTH, SUCCESS) if all(key in episode for episode in episodes)]
    of_task = list(dict.fromkeys(key for episode in episodes for key in episode if key.startswith((TASK, DOMAIN))))
    means = {key: float(np.mean([e[key] for e in episodes if key in e])) for key in [*keys, *of_task]}
    if of_task and SUCCESS in means:
        lengths = [episode[LENGTH] for episode in episodes if episode[SUCCESS]]
        means[f"{TASK}turns_of_success"] = float(np.mean(lengths)) if lengths else math.nan
    return means
