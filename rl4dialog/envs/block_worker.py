"""The worker side of :mod:`rl4dialog.envs.block_vec_env`. Does not import torch or stable-baselines3."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, SupportsFloat

import cloudpickle
import gymnasium as gym
import numpy as np

from rl4dialog.envs.fork_server import Failure

EnvFn = Callable[[], gym.Env]


@dataclass(frozen=True)
class Reply:
    """Reply to the request with the same number.

    Attributes:
        number: Number of the request.
        result: Result of the request.
        failure: Reason if the request failed.
        env: Index in the block of the environment that failed.
        is_missing: Whether it failed because of a missing attribute.
    """

    number: int
    result: Any = None
    failure: Failure | None = None
    env: int = 0
    is_missing: bool = False


def run_block(blocks: Sequence[Sequence[EnvFn]], worker: int, connection: Connection) -> None:
    """Answer requests to a block of environments until an empty one arrives, or the main process ends."""
    block = _EnvBlock(blocks[worker])
    with contextlib.suppress(EOFError, OSError):
        while request := connection.recv_bytes():
            connection.send_bytes(block.answer(request))
    for env in block.envs:
        env.close()


class _EnvBlock:
    """Environments that are stepped one after the other."""

    def __init__(self, env_fns: Sequence[EnvFn]) -> None:
        self.envs: list[gym.Env] = []
        self._env_fns = env_fns
        self._reset_infos: list[dict[str, Any]] = [{} for _ in env_fns]
        self._at = 0  # the current environment, for error messages

    def answer(self, request: bytes) -> bytes:
        """Process a pickled ``(number, command, pickled arguments)``.

        Returns:
            A pickled :class:`Reply`, in any case.
        """
        number, command, arguments = pickle.loads(request)
        self._at = 0
        try:
            reply = Reply(number, getattr(self, command)(*pickle.loads(arguments)))
            try:
                return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
            except (pickle.PicklingError, AttributeError, TypeError):
                # Three times as slow, but supports functions and classes of user files.
                return cloudpickle.dumps(reply)
        except Exception as error:
            is_missing = command == "call" and isinstance(error, AttributeError)
            return pickle.dumps(Reply(number, None, Failure.of(error), self._at, is_missing))

    def build(self) -> tuple[gym.Space, gym.Space]:
        """Build the environments; returns the spaces of the first one."""
        for at, env_fn in enumerate(self._env_fns):
            self._at = at
            self.envs.append(env_fn())
        return self.envs[0].observation_space, self.envs[0].action_space

    def reset(self, seeds: Sequence[int | None], options: Sequence[dict[str, Any]]) -> list[tuple[Any, dict[str, Any]]]:
        """Start an episode in all environments. Returns observation and info of each."""
        results = []
        for at, (env, seed, own) in enumerate(zip(self.envs, seeds, options, strict=True)):
            self._at = at
            observation, self._reset_infos[at] = env.reset(seed=seed, **({"options": own} if own else {}))
            results.append((observation, self._reset_infos[at]))
        return results

    def step(self, actions: np.ndarray) -> list[tuple[Any, SupportsFloat, bool, dict[str, Any], dict[str, Any]]]:
        """Step all environments, and reset those whose episode ended.

        Returns:
            Observation, reward, done, info and the info of the last reset, for each environment.
        """
        results = []
        for at, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            self._at = at
            observation, reward, terminated, truncated, info = env.step(action)
            done = terminated or truncated
            info["TimeLimit.truncated"] = truncated and not terminated
            if done:
                info["terminal_observation"] = observation
                observation, self._reset_infos[at] = env.reset()
            results.append((observation, reward, done, info, self._reset_infos[at]))
        return results

    def save(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the environments' states, each at the start of an episode, and the infos of their last resets."""
        states = []
        for at, env in enumerate(self.envs):
            self._at = at
            states.append(env.get_wrapper_attr("state_dict")())
        return states, self._reset_infos

    def load(self, states: Sequence[dict[str, Any]], reset_infos: list[dict[str, Any]]) -> None:
        """Restore the states of :meth:`save`; the worker exits if that fails.

        The main process does not check this reply, and all later ones would be wrong.
        """
        self._reset_infos = reset_infos
        try:
            for env, state in zip(self.envs, states, strict=True):
                env.get_wrapper_attr("load_state_dict")(state)
        except Exception as error:
            raise SystemExit(1) from error

    def call(self, envs: Sequence[int], function: bytes) -> list[Any]:
        """Call a pickled ``(function, arguments)`` with each given environment as first argument."""
        results = []
        for at in envs:
            self._at = at
            # Unpickled for each call, so that environments do not share objects.
            apply, arguments = pickle.loads(function)
            results.append(apply(self.envs[at], *arguments))
        return results


# -- functions for `call` ---------------------------------------------------------------------------------------------


def get_attribute(env: gym.Env, name: str) -> Any:
    return env.get_wrapper_attr(name)


def has_attribute(env: gym.Env, name: str) -> bool:
    try:
        env.get_wrapper_attr(name)
    except AttributeError:
        return False
    return True


def set_attribute(env: gym.Env, name: str, value: Any) -> None:
    setattr(env, name, value)


def call_method(env: gym.Env, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return env.get_wrapper_attr(name)(*args, **kwargs)


def is_wrapped(env: gym.Env, module: str, name: str) -> bool:
    """Whether an environment has a wrapper of a class, given by name because its module may import torch."""
    while isinstance(env, gym.Wrapper):
        if any((cls.__module__, cls.__qualname__) == (module, name) for cls in type(env).__mro__):
            return True
        env = env.env
    return False


def render(env: gym.Env) -> Any:
    return env.render()
