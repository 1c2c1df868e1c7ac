"""Wrappers around any gymnasium environment: its state as JSON, and episodes that every evaluation repeats."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.seeding import derive_seed


class ResumableEnv(gym.Wrapper):
    """Adds the state of an environment in the middle of an episode, as JSON values.

    The state is the random state in which the episode began, and its actions so far. They are repeated to restore it.
    This is exact if the environment depends on nothing else: neither on another source of random numbers than
    ``np_random``, nor on earlier episodes. An environment for which this is wrong or too slow defines ``state_dict()``
    and ``load_state_dict(state)`` itself, which returns the observation; these are used instead.

    The ``info`` of the last step has the return and the length of the episode as ``episode``, under
    stable-baselines3's names ``r`` and ``l``, unless the environment provides it.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._own_state = getattr(env, "state_dict", None)
        if self._own_state is None and env.has_wrapper_attr("state_dict"):
            raise ConfigError(
                f"the environment {env} has a state_dict(), but its wrappers have none, so it cannot be resumed "
                f"exactly; register its class with EnvRegistry instead of gymnasium, which adds wrappers"
            )
        self._begin: dict[str, Any] = {}
        self._actions: list[np.ndarray] = []
        self._return, self._length = 0.0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._begin = {"seed": seed, "np_random": None if seed is not None else self._generator.state}
        self._actions, self._return, self._length = [], 0.0, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        if self._own_state is None:
            self._actions.append(np.array(action))
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return, self._length = self._return + float(reward), self._length + 1
        if terminated or truncated:
            info.setdefault("episode", {"r": self._return, "l": self._length})
        return observation, reward, terminated, truncated, info

    def state_dict(self) -> dict[str, Any]:
        """Return the state in the current episode, as JSON values."""
        if self._own_state is not None:
            return {"env": self._own_state(), "return": self._return, "length": self._length}
        dtype = self._actions[0].dtype.str if self._actions else None
        return {"begin": self._begin, "actions": [action.tolist() for action in self._actions], "dtype": dtype}

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Restore the state of :meth:`state_dict`, and return the observation."""
        if self._own_state is not None:
            self._return, self._length = state["return"], state["length"]
            return self.env.load_state_dict(state["env"])  # type: ignore[attr-defined]
        begin = state["begin"]
        if begin["np_random"] is not None:
            self._generator.state = begin["np_random"]
        observation, _ = self.reset(seed=begin["seed"])
        for action in state["actions"]:
            observation = self.step(np.array(action, dtype=state["dtype"])[()])[0]
        return observation

    @property
    def _generator(self) -> Any:
        return self.unwrapped.np_random.bit_generator


class NumberedEpisodes(gym.Wrapper):
    """Begins every episode from a seed of its own, whatever happened before: the first, and each step-th after it.

    The ``info`` of each step has the ``episode_number``.
    """

    def __init__(self, env: gym.Env, first: int = 0, step: int = 1) -> None:
        super().__init__(env)
        self._first, self._step = first, step
        self.restart(0)

    def restart(self, seed: int) -> None:
        """Begin with the first episode again, and derive the seeds of episodes from another one."""
        self._seed, self._number = seed, self._first
        self._numbers = itertools.count(self._first, self._step)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        del seed
        self._number = next(self._numbers)
        return self.env.reset(seed=derive_seed(self._seed, self._number), options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, {**info, "episode_number": self._number}


def make_resumable(make_env: Callable[[], gym.Env]) -> ResumableEnv:
    """Build an environment in the process where it runs."""
    return ResumableEnv(make_env())
