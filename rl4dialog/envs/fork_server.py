"""A process that loads once what many workers need, and forks them.

It does what multiprocessing's forkserver does, with three differences. What it is given is unpickled before it forks,
so that the workers share modules, tokenizer and samples. It never runs the user's script again, which often imports
torch. And it is a server of our own: multiprocessing has one for the whole program, which belongs to the user.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import cloudpickle
import numpy as np

from rl4dialog.core.errors import EnvWorkerError

Work = Callable[[int, Connection], None]

# Ctrl-C reaches the whole process group; it is the main process that tells the others to end.
_PROGRAM = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); sys.path[:] = {path!r}; "
    "from rl4dialog.envs.fork_server import serve; serve({handles!r})"
)
# There are as many workers as cores; and threads that a library started do not survive a fork.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
_GRACE_S = 5.0


class WorkerTraceback(Exception):
    """Where another process raised: the cause of what is raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class Failure:
    """An exception on its way to the main process."""

    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        return cls(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))

    def as_error(self, message: str, kind: type[Exception] = EnvWorkerError) -> Exception:
        """An error that shows the traceback as its cause."""
        error = kind(message)
        error.__cause__ = WorkerTraceback(self.traceback)
        return error


class ForkServer:
    """The main process' side: starts the server and its workers, and tells how they ended.

    A worker is to end when it receives an empty message, or when the main process has died; one that does not within
    5 seconds is killed.

    Args:
        work: What a worker does, given its number and its connection to the main process.
        n_workers: How many there are.

    Attributes:
        connections: To each worker.
        pids: Of each worker.

    Raises:
        EnvWorkerError: If ``work`` cannot be pickled, or cannot be unpickled in the server.
    """

    def __init__(self, work: Work, n_workers: int) -> None:
        try:
            pickled = cloudpickle.dumps(work)
        except Exception as error:
            raise EnvWorkerError(
                f"the environments cannot be sent to worker processes: {type(error).__name__}: {error}"
            ) from error
        pairs = [Pipe() for _ in range(n_workers + 1)]
        self._control, *self.connections = (ours for ours, _ in pairs)
        handles = [theirs.fileno() for _, theirs in pairs]
        program = _PROGRAM.format(path=[entry for entry in sys.path if isinstance(entry, str)], handles=handles)
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=handles,
            env={**_ENVIRONMENT, **os.environ},
        )
        for _, theirs in pairs:
            theirs.close()
        self._exit_codes: dict[int, int] = {}
        try:
            self._control.send_bytes(pickled)
            answer = self._control.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise EnvWorkerError(
                f"the process that starts the environment workers died (exit code {self._process.returncode}); its "
                f"own error, if it had one, stands above"
            ) from error
        except BaseException:
            self.close()
            raise
        if isinstance(answer, Failure):
            self.close()
            raise answer.as_error(f"the environments cannot be unpickled in a worker process: {answer.message}")
        self.pids: list[int] = answer

    def exit_code(self, worker: int) -> int | None:
        """How a worker that was found dead has ended; ``None`` if nobody knows."""
        deadline = time.monotonic() + _GRACE_S
        with contextlib.suppress(EOFError, OSError):
            while worker not in self._exit_codes and self._control.poll(max(0.0, deadline - time.monotonic())):
                ended, code = self._control.recv()
                self._exit_codes[ended] = code
        return self._exit_codes.get(worker)

    def close(self) -> None:
        """End all workers, and wait for it."""
        for connection in (*self.connections, self._control):
            # Closing alone would not do: a process that the main process forked may hold a copy of the connection.
            with contextlib.suppress(OSError):
                connection.send_bytes(b"")
            connection.close()
        try:
            self._process.wait(2 * _GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


# -- in the server ----------------------------------------------------------------------------------------------------


def serve(handles: list[int]) -> None:
    """Unpickle the work, fork a worker for each handle but the first, and tell the main process how they end."""
    control, *connections = [Connection(handle) for handle in handles]
    try:
        work: Work = pickle.loads(control.recv_bytes())
    except BaseException as error:
        with contextlib.suppress(OSError):
            control.send(Failure.of(error))
        return
    gc.collect()
    # Else the first collection in a worker would write to, and so copy, every page that holds an object.
    gc.freeze()
    workers: dict[int, int] = {}
    for worker, connection in enumerate(connections):
        pid = os.fork()
        if pid == 0:
            # Whoever holds the other end of a connection hides from the main process that its worker has died.
            for other in (control, *connections):
                if other is not connection:
                    other.close()
            _run(work, worker, connection)
        workers[pid] = worker
    for connection in connections:
        connection.close()
    with contextlib.suppress(OSError):
        control.send(list(workers))
    threading.Thread(target=_kill_when_over, args=(control, workers), daemon=True).start()
    while workers:
        pid, status = os.wait()
        # A module that was imported may have started a process of its own.
        if pid in workers:
            with contextlib.suppress(OSError):
                control.send((workers.pop(pid), os.waitstatus_to_exitcode(status)))


def _run(work: Work, worker: int, connection: Connection) -> None:
    """Be a worker; never returns."""
    exit_code = 1
    try:
        # Python's own random generator is seeded anew by a fork, numpy's is not.
        np.random.seed()
        work(worker, connection)
        exit_code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(exit_code)


def _kill_when_over(control: Connection, workers: dict[int, int]) -> None:
    """Wait for the main process to say so, or to die; then leave the workers a while to end by themselves."""
    with contextlib.suppress(EOFError, OSError):
        control.recv_bytes()
    time.sleep(_GRACE_S)
    for pid in list(workers):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
