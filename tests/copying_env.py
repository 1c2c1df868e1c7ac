"""An environment that is learned at once: the action repeats the bits of the observation."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv


class Copying(gym.Env[Any, Any]):
    """Pays for repeating the bits of the observation."""

    def __init__(self, has_demonstrations: bool = True) -> None:
        self.observation_space = gym.spaces.MultiBinary(4)
        self.action_space = gym.spaces.MultiBinary(4)
        self._bits = np.zeros(4, np.int8)
        if has_demonstrations:
            self.demonstrations = self._demonstrations

    def _demonstrations(self) -> Any:
        bits = np.array([[i >> k & 1 for k in range(4)] for i in range(16)], np.int8)
        return bits, bits, np.ones(16, np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._bits = self.np_random.integers(0, 2, 4).astype(np.int8)
        return self._bits, {}

    def step(self, action: Any) -> Any:
        return self._bits, float((action == self._bits).mean()), True, False, {}


def copying_envs(**kwargs: Any) -> DummyVecEnv:
    """Two of them."""
    return DummyVecEnv([lambda: Copying(**kwargs)] * 2)
