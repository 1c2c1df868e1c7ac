"""Error messages and cleanup for stable-baselines3's unmodified SubprocVecEnv, if one of its workers dies."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from rl4dialog.core.errors import EnvWorkerError

# Time between the end of a connection and the exit code of its process.
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
        if not isinstance(env, SubprocVecEnv) or (found := _dead_worker(env)) is None:
            raise
        i, code = found
        raise EnvWorkerError(
            f"an environment worker died: process {env.processes[i].pid} with environment {i}, exit code {code}. Its "
            f"own error message, if any, is printed above; exit code -9 means that it was killed, often due to lack of "
            f"memory. With env.vec_env: subproc a dead worker ends the run; continue it with --resume from its last "
            f"checkpoint, or use env.vec_env: blocks with env.on_worker_death: restart to replace dead workers."
        ) from error


def close(env: VecEnv) -> None:
    """Close environments and their workers, without waiting for workers that died or are in the middle of a step."""
    if isinstance(env, SubprocVecEnv) and not env.closed and _would_be_waited_for(env):
        for process in env.processes:
            process.kill()
        for process, remote in zip(env.processes, env.remotes, strict=True):
            process.join()
            remote.close()
        env.closed = True
    env.close()


def _would_be_waited_for(env: SubprocVecEnv) -> bool:
    return env.waiting or any(process.exitcode is not None for process in env.processes)


def _dead_worker(env: SubprocVecEnv) -> tuple[int, int] | None:
    """Number and exit code of the first dead worker."""
    deadline = time.monotonic() + _GRACE_S
    while True:
        for i, process in enumerate(env.processes):
            if process.exitcode is not None:
                return i, process.exitcode
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
