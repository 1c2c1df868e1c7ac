"""Conversations per second with goals of turns: all at once beside one at a time."""

from __future__ import annotations

import statistics
import time

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from benchmarks.dialogue_acts import with_env
from rl4dialog.core.config import TurnLevelConfig
from rl4dialog.training.turn_level.environments import build_turn_level_algorithm


def conversations_per_second(config: TurnLevelConfig, n_envs: int, n_rounds: int) -> tuple[float, float]:
    """Measure whole conversations with random goals, without updates."""
    together, alone = _envs(config, n_envs), _envs(config, 1)
    found = [(_speed(together), _speed(alone)) for _ in range(n_rounds)]
    return statistics.median(pair[0] for pair in found), statistics.median(pair[1] for pair in found)


def _envs(config: TurnLevelConfig, n_envs: int) -> VecEnv:
    envs: VecEnv = build_turn_level_algorithm(with_env(config, n_envs=n_envs)).get_env()
    _speed(envs)  # what is loaded or computed once is not measured
    return envs


def _speed(envs: VecEnv) -> float:
    """Hold a conversation in each environment."""
    envs.seed(0)
    envs.reset()
    generator = np.random.default_rng(0)
    started, n_over = time.process_time(), 0
    while n_over < envs.num_envs:
        *_, dones, _ = envs.step(generator.integers(envs.action_space.n, size=envs.num_envs))  # type: ignore[attr-defined]
        n_over += int(np.sum(dones))
    return n_over / (time.process_time() - started)
