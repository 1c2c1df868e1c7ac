"""Replay buffers that begin with the turns of a demonstrator."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from rl4dialog.core.arguments import Count, Fraction
from rl4dialog.core.errors import ConfigError


def warm_start_by_replay(
    algorithm: Any, policy: Literal["rule"] = "rule", n_turns: Count = 5000, exploration: Fraction = 0.1
) -> None:
    """Fill the replay buffer with turns of the environment's rule policy before the first iteration.

    Without them, DQN rarely sees a successful dialogue (BBQ networks, Lipton et al. 2018, arXiv 1608.05081, call this
    replay buffer spiking). These steps do not count as timesteps of the run.

    Args:
        algorithm: An off-policy algorithm.
        policy: The demonstrator: ``rule`` for the environment's ``rule_action()``.
        n_turns: Number of turns to store.
        exploration: Share of turns with a random action instead.

    Raises:
        ConfigError: If the algorithm has no replay buffer, the buffer is too small, or the environment no rule policy.
    """
    if not isinstance(algorithm, OffPolicyAlgorithm):
        raise ConfigError(
            f"warm_start.id: replay fills a replay buffer; {type(algorithm).__name__} has none. Use warm_start.id: bc"
        )
    env, buffer = algorithm.env, algorithm.replay_buffer
    assert env is not None and buffer is not None
    if n_turns > algorithm.buffer_size:
        raise ConfigError(
            f"warm_start.args.n_turns is {n_turns}, which is more than alg.args.buffer_size ({algorithm.buffer_size})"
        )
    algorithm._last_obs = env.reset()  # type: ignore[assignment]
    explore = algorithm.action_space.np_random
    for _ in range(-(-n_turns // env.num_envs)):
        try:
            chosen = env.env_method("rule_action")
        except AttributeError as error:
            raise ConfigError("warm_start.id: replay needs an environment with a method rule_action()") from error
        is_random = explore.random(env.num_envs) < exploration
        actions = np.array([algorithm.action_space.sample() if is_random[i] else a for i, a in enumerate(chosen)])
        observations, rewards, dones, infos = env.step(actions)
        algorithm._store_transition(buffer, actions, observations, rewards, dones, infos)  # type: ignore[arg-type]
    algorithm._last_obs = None  # learn() begins with new episodes
