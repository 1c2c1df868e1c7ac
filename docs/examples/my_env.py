from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rl4dialog import EnvRegistry


@EnvRegistry.register("guess_the_number")
class GuessTheNumber(gym.Env):
    """A number to be found, from hints whether a guess is too low or too high.

    Args:
        n_numbers: Number of possible numbers.
        max_guesses: Maximum length of an episode.
    """

    def __init__(self, n_numbers: int = 16, max_guesses: int = 5) -> None:
        self.observation_space = gym.spaces.MultiBinary(n_numbers)  # which numbers are still possible
        self.action_space = gym.spaces.Discrete(n_numbers)
        self._max_guesses = max_guesses

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._possible = np.ones(self.action_space.n, dtype=np.int8)
        self._number = int(self.np_random.integers(self.action_space.n))
        self._n_guesses = 0
        return self._possible.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._n_guesses += 1
        found, is_last = int(action) == self._number, self._n_guesses == self._max_guesses
        wrong = slice(None, action + 1) if action < self._number else slice(action, None)
        if not found:
            self._possible[wrong] = 0
        return self._possible.copy(), float(found), found or is_last, False, {"is_success": found}

    def action_masks(self) -> np.ndarray:
        """Sensible guesses, for maskable_ppo."""
        return self._possible.astype(bool)
