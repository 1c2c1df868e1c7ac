"""Runs console commands in separate processes, unaffected by the state of this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_PARENT = "RL4DIALOG_PARENT"
"""Environment variable of a command that another one started: the id of that one's process."""
_POLL_S = 0.2
EXIT_INTERRUPTED = 75  # EX_TEMPFAIL of sysexits.h: the command can be rerun
# Taken out of the environment, because what this process starts in turn is no child of that one.
_STARTED_BY = os.environ.pop(_PARENT, None)


def end_with_parent() -> None:
    """Let this process save its state and stop once the command that started it is gone, even if that was killed.

    If it is gone already, this process ends at once. Windows, where a process can have another parent, is left alone.
    """

    def watch(parent: int, main_thread: int) -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        signal.pthread_kill(main_thread, signal.SIGTERM)

    if _STARTED_BY is not None and os.name == "posix":
        arguments = int(_STARTED_BY), threading.get_ident()
        threading.Thread(target=watch, args=arguments, name="end_with_parent", daemon=True).start()


def run_command(arguments: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] = {}) -> int:
    """Run ``rl4dialog`` with arguments, on this console; see :func:`ending_together`.

    Args:
        arguments: Name of the command and its arguments.
        folder: Working directory; by default the current one.
        environment: Environment variables to add.

    Returns:
        The exit code.

    Raises:
        SystemExit: If this process was interrupted; see :func:`ending_together`.
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
        SystemExit: If this process was interrupted; with the exit code of one of them, which is 75 for one that was
            stopped before it had anything to save.
    """

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # a second one would end the wait below
        for process in processes:
            process.terminate()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        # A second Ctrl-C ends this wait and kills the processes below.
        codes = [process.wait() for process in processes]
        raise SystemExit(max([code for code in codes if code > 0], default=EXIT_INTERRUPTED)) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
