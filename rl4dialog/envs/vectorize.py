"""Several environments at once, in this process or in workers."""

from __future__ import annotations

import copy
import dataclasses
import functools
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rl4dialog.core.errors import RewardError
from rl4dialog.core.types import RewardPart
from rl4dialog.envs.shared_samples import SharedSamples
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.envs.utterance_view import UtteranceView

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

_logger = logging.getLogger(__name__)


def make_utterance_env(env_kwargs: dict[str, Any]) -> UtteranceView:
    """One environment, built where it will run.

    What may remember something between two calls, rewards and the partner, is copied, so that an environment does the
    same wherever and beside whichever others it runs; tokenizer and samples are shared with them.
    """
    end_of_turn = env_kwargs["end_of_turn"]
    shared = {id(value): value for value in (end_of_turn, end_of_turn.tokenizer, env_kwargs["samples"])}
    parts = [dataclasses.replace(part, function=_own_copy(part, shared)) for part in env_kwargs.get("reward_parts", ())]
    partner = copy.deepcopy(env_kwargs.get("partner"), shared)
    return UtteranceView(TextGenEnv(**{**env_kwargs, "reward_parts": parts, "partner": partner}))


def _own_copy(part: RewardPart, shared: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(part.function, shared)
    except Exception as error:
        raise RewardError(
            f"reward {part.name!r} cannot be copied, and each environment has its own: {type(error).__name__}: "
            f"{error}. A method __deepcopy__ of its class that returns self lets the environments share it."
        ) from error


def make_vec_env(
    env_kwargs: dict[str, Any],
    n_envs: int,
    vec_env: str = "subproc",
    n_workers: int | None = None,
    max_restarts: int = 0,
) -> VecEnv:
    """Vectorize :class:`UtteranceView`.

    Args:
        env_kwargs: Arguments of :class:`TextGenEnv`.
        n_envs: Number of environments.
        vec_env: ``subproc`` for blocks of them in worker processes, ``dummy`` for all in this process.
        n_workers: Number of workers; by default one per core.
        max_restarts: How many workers that died are replaced.

    Raises:
        EnvWorkerError: If a worker process dies while it starts, or an environment cannot be built in it.
        RewardError: If a reward cannot be copied.
    """
    from stable_baselines3.common.vec_env import DummyVecEnv

    samples = env_kwargs["samples"]
    env_kwargs = {**env_kwargs, "samples": samples if isinstance(samples, SharedSamples) else SharedSamples(samples)}
    env_fns: list[Callable[[], gym.Env]] = [functools.partial(make_utterance_env, env_kwargs)] * n_envs
    if vec_env == "subproc" and not hasattr(os, "fork"):
        _logger.warning("env.vec_env: subproc needs a system that can fork; the environments run in this process")
        vec_env = "dummy"
    if vec_env == "dummy":
        return DummyVecEnv(env_fns)

    from rl4dialog.envs.block_vec_env import BlockVecEnv

    return BlockVecEnv(env_fns, n_workers, max_restarts)


def env_states(vec_env: VecEnv) -> list[dict[str, Any]]:
    """The state of each environment; see :meth:`TextGenEnv.state_dict`."""
    return vec_env.env_method("state_dict")


def load_env_states(vec_env: VecEnv, states: Sequence[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Give each environment a state of :func:`env_states`.

    Returns:
        Where the environments stand then, as ``reset()`` gives it.
    """
    observations = [
        vec_env.env_method("load_state_dict", state, indices=index)[0] for index, state in enumerate(states)
    ]
    return {name: np.stack([observation[name] for observation in observations]) for name in observations[0]}
