"""stable-baselines3's SubprocVecEnv, which is used as it is: saying which of its workers died, and ending them all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from rl4dialog.core.errors import EnvWorkerError

# From the end of a connection until the process behind it can be found dead.
_GRACE_S = 5.0


@contextmanager
def deaths_told(env: VecEnv) -> Iterator[None]:
    """Turn what a dead worker of a ``SubprocVecEnv`` raises here into an error that names it.

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
            f"own error, if it had one, stands above; exit code -9 means that it was killed, often for lack of memory. "
            f"With env.vec_env: subproc a dead worker ends the run, which --resume continues from its last checkpoint; "
            f"env.vec_env: blocks with env.on_worker_death: restart replaces the worker."
        ) from error


def close(env: VecEnv) -> None:
    """End environments and their workers; one that died or is in the middle of a step is not waited for."""
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
    """Number and exit code of the first worker that has ended."""
    deadline = time.monotonic() + _GRACE_S
    while True:
        for i, process in enumerate(env.processes):
            if process.exitcode is not None:
                return i, process.exitcode
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
