"""Several environments at once, behind stable-baselines3's own vectorized environments."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from rl4dialog.core.errors import EnvWorkerError
from rl4dialog.envs.text_generation import TextGenEnv
from rl4dialog.envs.utterance_view import UtteranceView

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv


def make_utterance_env(env_kwargs: dict[str, Any]) -> UtteranceView:
    """One environment, built where it will run."""
    return UtteranceView(TextGenEnv(**env_kwargs))


def _make_in_worker(env_kwargs: dict[str, Any]) -> UtteranceView:
    # Ctrl-C reaches the whole process group; the main process tells the workers to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return make_utterance_env(env_kwargs)


def make_vec_env(env_kwargs: dict[str, Any], n_envs: int, vec_env: str = "subproc") -> VecEnv:
    """Vectorize :class:`UtteranceView`.

    Args:
        env_kwargs: Arguments of :class:`TextGenEnv`.
        n_envs: Number of environments.
        vec_env: ``subproc`` for a process per environment, ``dummy`` for all in this process.

    Raises:
        EnvWorkerError: If a worker process dies while it starts.
    """
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    make = make_utterance_env if vec_env == "dummy" else _make_in_worker
    env_fns: list[Callable[[], gym.Env]] = [functools.partial(make, env_kwargs) for _ in range(n_envs)]
    if vec_env == "dummy":
        return DummyVecEnv(env_fns)
    try:
        return SubprocVecEnv(env_fns)
    except (EOFError, ConnectionError) as error:
        raise EnvWorkerError(
            "an environment worker died while it started; its own error stands above. "
            "env.vec_env: dummy runs the environments in this process, which shows the whole traceback."
        ) from error


def close_vec_env(env: VecEnv) -> None:
    """Close the environments, also when some of their workers are dead."""
    try:
        env.close()
    except (EOFError, OSError):
        for process in getattr(env, "processes", []):
            process.terminate()
