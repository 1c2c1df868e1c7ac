"""Error messages and cleanup for stable-baselines3's unmodified SubprocVecEnv, if one of its workers dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait

from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from rl4dialog.core.errors import EnvWorkerError

# Time between the end of a connection and the end of its process.
_GRACE_S = 5.0


@contextmanager
def worker_death_as_error(env: VecEnv) -> Iterator[None]:
    """Convert errors caused by a dead worker of a ``SubprocVecEnv`` to an error that names the worker.

    Raises:
        EnvWorkerError: If a worker has died.
    """
    try:
        yield
    except (EOFError, OSError) as error:
        env = env.unwrapped
        if not isinstance(env, SubprocVecEnv):
            raise
        if not (ended := wait([process.sentinel for process in env.processes], _GRACE_S)):
            raise
        i, dead = next((i, process) for i, process in enumerate(env.processes) if process.sentinel in ended)
        dead.join()
        raise EnvWorkerError(
            f"an environment worker died: process {dead.pid} with environment {i}, exit code {dead.exitcode}. Its own "
            f"error message, if any, is printed above; exit code -9 means that it was killed, often due to lack of "
            f"memory. With env.vec_env: subproc a dead worker ends the run; continue it with --resume from its last "
            f"checkpoint. Workers of text environments are replaced with env.vec_env: blocks and "
            f"env.on_worker_death: restart."
        ) from error


def close(env: VecEnv) -> None:
    """Close environments and their workers, without waiting for workers that died or are in the middle of a step."""
    env = env.unwrapped
    if (
        isinstance(env, SubprocVecEnv)
        and not env.closed
        and (env.waiting or any(process.exitcode is not None for process in env.processes))
    ):
        for process, remote in zip(env.processes, env.remotes, strict=True):
            process.kill()
            process.join()
            remote.close()
        env.closed = True
    env.close()
