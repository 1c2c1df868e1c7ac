"""Runs several environments at once, in this process or in workers."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rl4dialog.core.errors import EnvWorkerError, RewardError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.envs.fork_safety import ADVICE
from rl4dialog.envs.fork_server import ForkServer, dumps
from rl4dialog.envs.shared_samples import SharedSamples
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.envs.utterance_view import UtteranceView

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

_logger = logging.getLogger(__name__)


def make_utterance_env(
    env_kwargs: dict[str, Any], timeout_s: float | None = None, ends_process: bool = False
) -> UtteranceView:
    """Build an environment in the process where it runs; arguments are those of the two classes.

    Rewards and the partner, which can have state, are copied, so that environments do not affect each other; they share
    tokenizer and samples.
    """
    shared = {id(value): value for value in _shared(env_kwargs)}
    parts = [dataclasses.replace(part, function=_own_copy(part, shared)) for part in env_kwargs.get("reward_parts", ())]
    partner = copy.deepcopy(env_kwargs.get("partner"), shared)
    env = TextGenEnv(**{**env_kwargs, "reward_parts": parts, "partner": partner})
    return UtteranceView(env, timeout_s, ends_process)


def _make_in_own_process(build: Callable[[], gym.Env]) -> gym.Env:
    """Build the only environment of a process, which only the main process ends, ignoring signals to the group."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return build()


def _shared(env_kwargs: dict[str, Any]) -> list[Any]:
    """Constant objects that all environments can refer to."""
    end_of_turn = env_kwargs["end_of_turn"]
    return [end_of_turn, end_of_turn.tokenizer, env_kwargs["samples"]]


def _own_copy(part: RewardPart, shared: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(part.function, shared)
    except Exception as error:
        raise RewardError(
            f"reward {part.name!r} cannot be copied for each environment: {type(error).__name__}: {error}. Define "
            f"__deepcopy__ in its class and return self to share it between environments."
        ) from error


def make_vec_env(
    env_kwargs: dict[str, Any],
    n_envs: int,
    vec_env: str = "blocks",
    n_workers: int | None = None,
    max_restarts: int = 0,
    timeout_s: float | None = None,
) -> VecEnv:
    """Vectorize :class:`UtteranceView`.

    Args:
        env_kwargs: Arguments of :class:`TextGenEnv`.
        n_envs: Number of environments.
        vec_env: ``blocks`` for several environments per worker process; ``subproc`` for stable-baselines3's
            ``SubprocVecEnv``, with one process per environment, each with its own copy of the samples; ``dummy`` for
            all environments in this process.
        n_workers: Number of workers for ``blocks``; by default one per core.
        max_restarts: Number of dead workers to replace, for ``blocks``.
        timeout_s: Time limit of the rewards of a reply.

    Raises:
        EnvWorkerError: If a worker process dies at its start, an environment cannot be built in it, a reward cannot be
            sent to it, or loading them opens a file or starts a thread that workers would share.
        RewardError: If a reward cannot be copied.
    """
    vec_env, env_kwargs = _placed(vec_env, env_kwargs)
    build = functools.partial(make_utterance_env, env_kwargs, timeout_s, ends_process=vec_env == "subproc")
    return vectorize([build] * n_envs, vec_env, n_workers, max_restarts, timeout_s, _shared(env_kwargs))


def vectorize(
    builds: Sequence[Callable[[], gym.Env]],
    vec_env: str,
    n_workers: int | None = None,
    max_restarts: int = 0,
    timeout_s: float | None = None,
    shared: Sequence[Any] = (),
) -> VecEnv:
    """Run any environments at once.

    Args:
        builds: Build one environment each, in the process where it runs.
        vec_env: As for :func:`make_vec_env`, as are the other arguments.
        n_workers: Number of workers for ``blocks``.
        max_restarts: Number of dead workers to replace, for ``blocks``.
        timeout_s: Time limit of a step, for ``blocks``.
        shared: Constant objects to which ``builds`` refer, and which all workers share, for ``blocks``.

    Raises:
        EnvWorkerError: If a worker process dies at its start, or an environment cannot be built in it.
    """
    from stable_baselines3.common.vec_env import SubprocVecEnv

    from rl4dialog.envs.block_vec_env import BlockVecEnv
    from rl4dialog.envs.dummy_vec_env import ForeseeingVecEnv

    vec_env = _available(vec_env)
    if vec_env == "dummy":
        return ForeseeingVecEnv(builds)
    if vec_env == "blocks":
        return BlockVecEnv(builds, n_workers, max_restarts, timeout_s, shared)
    try:
        return SubprocVecEnv([functools.partial(_make_in_own_process, build) for build in builds])
    except (EOFError, OSError) as error:
        raise EnvWorkerError(
            "an environment worker died while its environment was built; its own error message is printed above"
        ) from error


def check_workers(env_kwargs: dict[str, Any], vec_env: str = "blocks") -> None:
    """Check what :func:`make_vec_env` would send to worker processes, without starting one.

    Without workers, nothing is checked.

    Raises:
        EnvWorkerError: If a reward cannot be sent to workers, or loading them opens a file or starts a thread that
            workers would share.
    """
    vec_env, env_kwargs = _placed(vec_env, env_kwargs)
    if vec_env == "blocks":
        ForkServer(print, functools.partial(make_utterance_env, env_kwargs), _shared(env_kwargs)).close()


def _placed(vec_env: str, env_kwargs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Determine where environments run on this system, and check that their arguments can be sent there."""
    vec_env = _available(vec_env)
    samples = env_kwargs["samples"]
    env_kwargs = {**env_kwargs, "samples": samples if isinstance(samples, SharedSamples) else SharedSamples(samples)}
    if vec_env != "dummy":
        named = {f"reward {part.name!r}": part.function for part in env_kwargs.get("reward_parts", ())}
        for name, value in {**named, "the partner": env_kwargs.get("partner")}.items():
            try:
                dumps(value, _shared(env_kwargs))
            except Exception as error:
                raise EnvWorkerError(
                    f"{name} cannot be sent to worker processes: {type(error).__name__}: {error}. {ADVICE}; "
                    f"__getstate__ of its class can omit objects that are already open."
                ) from error
    return vec_env, env_kwargs


def _available(vec_env: str) -> str:
    """The given placement, or ``dummy`` if this system does not support it."""
    if vec_env != "blocks" or hasattr(os, "fork"):
        return vec_env
    _logger.warning("env.vec_env: blocks requires a system with fork; the environments run in this process instead")
    return "dummy"


def env_states(vec_env: VecEnv) -> list[dict[str, Any]]:
    """Return the state of each environment, which has a ``state_dict``."""
    from rl4dialog.envs.sb3_workers import worker_death_as_error

    with worker_death_as_error(vec_env):
        return vec_env.env_method("state_dict")


def load_env_states(vec_env: VecEnv, states: Sequence[dict[str, Any]]) -> Any:
    """Restore the environments' states from :func:`env_states`.

    Returns:
        The observations, as from ``reset()``: an array, or arrays by name.
    """
    from rl4dialog.envs.sb3_workers import worker_death_as_error

    with worker_death_as_error(vec_env):
        observations = [
            vec_env.env_method("load_state_dict", state, indices=index)[0] for index, state in enumerate(states)
        ]
    if not isinstance(observations[0], Mapping):
        return np.stack(observations)
    return {name: np.stack([observation[name] for observation in observations]) for name in observations[0]}
