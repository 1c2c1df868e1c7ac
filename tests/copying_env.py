"""An environment that is learned at once: the action repeats the bits of the observation."""

from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv


class Copying(gym.Env[Any, Any]):
    """Pays for repeating the bits of the observation; every second episode may be truncated instead of terminated."""

    def __init__(self, has_demonstrations=True, length=1, truncates=False):
        self._length, self._truncates, self._n_steps = length, truncates, 0
        self.observation_space = gym.spaces.MultiBinary(4)
        self.action_space = gym.spaces.MultiBinary(4)
        self._bits = np.zeros(4, np.int8)
        if has_demonstrations:
            self.demonstrations = self._demonstrations

    def _demonstrations(self):
        bits = np.array([[i >> k & 1 for k in range(4)] for i in range(16)], np.int8)
        return bits, bits, np.arange(16) % 2  # dialogues of two turns

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._bits = self.np_random.integers(0, 2, 4).astype(np.int8)
        return self._bits, {}

    def step(self, action):
        reward = float((action == self._bits).mean())
        self._n_steps += 1
        is_over, is_second = self._n_steps % self._length == 0, self._n_steps // self._length % 2 == 0
        is_cut = is_over and is_second and self._truncates
        self._bits = self.np_random.integers(0, 2, 4).astype(np.int8)
        return self._bits, reward, is_over and not is_cut, is_cut, {}


def copying_envs(**kwargs):
    """Two of them."""
    return DummyVecEnv([lambda: Copying(**kwargs)] * 2)
