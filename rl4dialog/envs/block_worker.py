"""The worker side of :mod:`rl4dialog.envs.block_vec_env`. Does not import torch or stable-baselines3."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np

from rl4dialog.envs.columns import Packed, pack
from rl4dialog.envs.fork_server import Failure

EnvFn = Callable[[], gym.Env]


def run_block(connection: Connection, load_env_fns: Callable[[], Sequence[EnvFn]], block: range) -> None:
    """Answer requests to a block of environments until an empty one arrives, or the main process ends."""
    worker = _EnvBlock(load_env_fns, block)
    with contextlib.suppress(EOFError, OSError):
        while request := connection.recv_bytes():
            connection.send_bytes(worker.answer(request))
    for env in worker.envs:
        env.close()


class _EnvBlock:
    """Environments that are stepped one after the other."""

    def __init__(self, load_env_fns: Callable[[], Sequence[EnvFn]], block: range) -> None:
        self.envs: list[gym.Env] = []
        self._load_env_fns, self._block = load_env_fns, block
        self._at = 0  # the current environment, for error messages
        self._partners_wait = False

    def answer(self, request: bytes) -> bytes:
        """Process a pickled ``(command, *arguments)``.

        Returns:
            The pickled result, or a pickled :class:`Failure`.
        """
        self._at, command = 0, ""
        try:
            command, *arguments = pickle.loads(request)
            result = getattr(self, command)(*arguments)
            try:
                return pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
            except (pickle.PicklingError, AttributeError, TypeError):
                # Three times as slow, but supports functions and classes of user files.
                return cloudpickle.dumps(result)
        except Exception as error:
            is_missing = command == "call" and isinstance(error, AttributeError)
            return pickle.dumps(Failure.of(error, self._at, is_missing))

    def build(self, calls: Sequence[tuple[Any, ...]] = (), states: Sequence[Any] = ()) -> tuple[gym.Space, gym.Space]:
        """Build the environments, repeat calls, and restore states; returns the spaces of the first environment."""
        env_fns = self._load_env_fns()
        for at, env in enumerate(self._block):
            self._at = at
            self.envs.append(env_fns[env]())
        self._partners_wait = partner_waits(self.envs[0])
        for call in calls:
            self.call(*call)
        for at, state in enumerate(states):
            self._at = at
            self.envs[at].get_wrapper_attr("load_state_dict")(state)
        return self.envs[0].observation_space, self.envs[0].action_space

    def reset(self, seeds: Sequence[int | None], options: Sequence[dict[str, Any]]) -> Packed:
        """Start an episode in all environments; returns observation and info of each."""
        starts: list[dict[str, Any]] = [
            {"seed": seed, **({"options": own} if own else {})} for seed, own in zip(seeds, options, strict=True)
        ]
        for at, start in enumerate(starts if self._partners_wait else ()):
            self._at = at
            call_method(self.envs[at], "expect_reset", (), start)
        results = []
        for at, (env, start) in enumerate(zip(self.envs, starts, strict=True)):
            self._at = at
            results.append(env.reset(**start))
        return pack(results)

    def step(self, actions: np.ndarray) -> Packed:
        """Step all environments, and reset those whose episode ended.

        Returns:
            Observation, reward, done, info, and info of a reset or ``None``, for each environment.
        """
        for at, action in enumerate(actions if self._partners_wait else ()):
            self._at = at
            call_method(self.envs[at], "expect_step", (action,), {})
        steps = []
        for at, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            self._at = at
            observation, reward, terminated, truncated, info = env.step(action)
            info["TimeLimit.truncated"] = truncated and not terminated
            steps.append((observation, reward, terminated or truncated, info))
            if self._partners_wait and (terminated or truncated):
                call_method(env, "expect_reset", (), {})
        results = []
        for at, (observation, reward, done, info) in enumerate(steps):
            self._at, reset_info = at, None
            if done:
                info["terminal_observation"] = observation
                observation, reset_info = self.envs[at].reset()
            results.append((observation, reward, done, info, reset_info))
        return pack(results)

    def call(self, envs: Sequence[int], function: bytes) -> list[Any]:
        """Call a pickled function with each of the given environments of the block."""
        results = []
        for at in envs:
            self._at = at
            # Unpickled for each call, so that environments do not share objects.
            results.append(pickle.loads(function)(self.envs[at]))
        return results


def partner_waits(env: gym.Env) -> bool:
    """Whether an environment wants to know its coming steps and resets, as :class:`UtteranceView` describes."""
    return bool(env.has_wrapper_attr("partner_waits") and env.get_wrapper_attr("partner_waits"))


# -- functions for `call` ---------------------------------------------------------------------------------------------


def call_method(env: gym.Env, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method of an environment or of what it wraps."""
    return env.get_wrapper_attr(name)(*args, **kwargs)


def is_wrapped(env: gym.Env, module: str, name: str) -> bool:
    """Whether an environment has a wrapper of a class, given by name because its module may import torch."""
    while isinstance(env, gym.Wrapper):
        if any((cls.__module__, cls.__qualname__) == (module, name) for cls in type(env).__mro__):
            return True
        env = env.env
    return False
