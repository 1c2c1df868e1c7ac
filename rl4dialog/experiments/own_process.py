"""Runs console commands in separate processes, unaffected by the state of this one."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_PARENT = "RL4DIALOG_PARENT"
"""Environment variable of a command that another one started: the id of that one's process."""
_SIGNAL_AT_END_OF_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
_IS_STAGE = os.environ.get(_PARENT) == str(os.getppid())

HOW_TO_RESUME = "" if _IS_STAGE else " with --resume auto"
"""What follows "rerun the command": a command that started this one continues it without a flag."""


def end_with_parent() -> None:
    """Let this process save its state and stop when the command that started it is gone, also if that was killed.

    Only on Linux; elsewhere, it goes on.
    """
    if _IS_STAGE and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_AT_END_OF_PARENT, signal.SIGTERM, 0, 0, 0)


def run_command(arguments: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] = {}) -> int:
    """Run ``rl4dialog`` with arguments, on this console; see :func:`ending_together`.

    Args:
        arguments: Name of the command and its arguments.
        folder: Working directory; by default the current one.
        environment: Environment variables to add.

    Returns:
        The exit code.

    Raises:
        SystemExit: If this process was interrupted; with the child's exit code.
    """
    processes: list[subprocess.Popen[bytes]] = []
    with ending_together(processes):
        processes.append(start_command(arguments, folder, environment))
        return processes[0].wait()


def start_command(
    arguments: Sequence[str],
    folder: Path | None = None,
    environment: Mapping[str, str] = {},
    output: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``rl4dialog`` with arguments.

    Args:
        arguments: Name of the command and its arguments.
        folder: Working directory; by default the current one.
        environment: Environment variables to add.
        output: File to which standard output and error are appended; by default they go to this console.
    """
    command = [sys.executable, "-m", "rl4dialog.cli", *arguments]
    environment = {**os.environ, _PARENT: str(os.getpid()), **environment}
    if output is None:
        return subprocess.Popen(command, cwd=folder, env=environment)
    with open(output, "ab") as file:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)


def shared_cores(n_jobs: int) -> dict[str, str]:
    """Environment variables that share the cores among simultaneous runs, unless the user has set a number of threads.

    Args:
        n_jobs: Number of runs at a time. A single one needs no setting.
    """
    if n_jobs == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // n_jobs))}


@contextmanager
def ending_together(processes: Collection[subprocess.Popen[bytes]]) -> Iterator[None]:
    """End the given processes with this one.

    Ctrl-C reaches all processes, and SIGTERM is forwarded. This process waits for the others to save their state, and
    then exits too. After any other error they are killed.

    Args:
        processes: Processes started by this one, also those added during the block.

    Raises:
        SystemExit: If this process was interrupted; with the exit code of one of them.
    """

    def end(number: int, frame: FrameType | None) -> None:
        for process in processes:
            process.terminate()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        # A second Ctrl-C ends this wait and kills the processes below.
        raise SystemExit(max([process.wait() for process in processes], default=0) or 130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
