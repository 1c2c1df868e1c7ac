"""Turns per second in dialogue acts: the environment alone, training, and training with worker processes.

With goals of turns, conversations per second, all at once beside one at a time.

One process is measured in seconds of CPU time, so other processes on the machine hardly change the result. Worker
processes are compared with one process by the clock, in alternating iterations.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv

from rl4dialog.features.dialogue_acts.config import TurnLevelConfig
from rl4dialog.features.dialogue_acts.environments import build_turn_level_algorithm, warm_start
from rl4dialog.features.dialogue_acts.tasks.environment import DialogueActEnv


def environment_turns(config: TurnLevelConfig, n_turns: int) -> float:
    """Turns per second of CPU time in ``step`` and ``reset`` of one environment, to which the rule policy talks."""
    vec_env = build_turn_level_algorithm(one_process(config)).get_env()
    env: DialogueActEnv = vec_env.envs[0].unwrapped
    env.reset(seed=config.seed)
    spent = 0.0
    for _ in range(n_turns):
        action = env.rule_action()
        started = time.process_time()
        *_, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
        spent += time.process_time() - started
    return n_turns / spent


def training_turns(config: TurnLevelConfig, n_rounds: int) -> float:
    """Turns per second of CPU time in iterations of the algorithm, updates included, in one process."""
    trained = Training(one_process(config))
    seconds = [trained.iterate(time.process_time) for _ in range(n_rounds)]
    return trained.n_turns / statistics.median(seconds)


def gain_of_workers(config: TurnLevelConfig, n_workers: Sequence[int], n_rounds: int) -> dict[int, float]:
    """Speed of an iteration with worker processes, as a multiple of the speed in one process."""
    alone = Training(one_process(config))
    others = {n: Training(with_env(config, vec_env="blocks", n_workers=n)) for n in n_workers}
    ratios: dict[int, list[float]] = {n: [] for n in n_workers}
    for _ in range(n_rounds):
        seconds = alone.iterate(time.perf_counter)
        for n, training in others.items():
            ratios[n].append(seconds / training.iterate(time.perf_counter))
    for training in (alone, *others.values()):
        training.close()
    return {n: statistics.median(found) for n, found in ratios.items()}


class Training:
    """An algorithm after its warm start, and one iteration that is not measured."""

    def __init__(self, config: TurnLevelConfig) -> None:
        self._algorithm = build_turn_level_algorithm(config)
        self._algorithm.set_logger(Logger(folder=None, output_formats=[]))
        warm_start(config, self._algorithm)
        self.n_turns: int = self._algorithm.timesteps_per_iteration
        self.iterate(time.perf_counter)

    def iterate(self, clock: Callable[[], float]) -> float:
        """Train for one iteration; returns its seconds."""
        started = clock()
        algorithm: Any = self._algorithm
        algorithm.learn(self.n_turns, log_interval=None, reset_num_timesteps=False)
        return clock() - started

    def close(self) -> None:
        """End the worker processes."""
        self._algorithm.get_env().close()


def one_process(config: TurnLevelConfig) -> TurnLevelConfig:
    """The config with all environments in this process."""
    return with_env(config, vec_env="dummy")


def with_env(config: TurnLevelConfig, **env: Any) -> TurnLevelConfig:
    """The config with other settings of ``env``."""
    return config.model_copy(update={"env": config.env.model_copy(update=env)})


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
