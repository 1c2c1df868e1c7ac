"""stable-baselines3's ``DummyVecEnv``, in which partners that wait for a server are asked all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs

from rl4dialog.envs.block_worker import call_method, partner_waits


class ForeseeingVecEnv(DummyVecEnv):
    """Announces steps and resets to environments whose partner waits.

    The reset of an environment in the middle of a step is not announced, so partners that open a conversation are then
    asked one after the other.

    Args:
        env_fns: Functions that build the environments.
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env]]) -> None:
        super().__init__(list(env_fns))
        self._waiting = self.envs if partner_waits(self.envs[0]) else []

    def reset(self) -> VecEnvObs:
        for env, seed, options in zip(self._waiting, self._seeds, self._options, strict=False):
            call_method(env, "expect_reset", (), {"seed": seed, "options": options})
        return super().reset()

    def step_async(self, actions: np.ndarray) -> None:
        super().step_async(actions)
        for env, action in zip(self._waiting, actions, strict=False):
            call_method(env, "expect_step", (action,), {})
