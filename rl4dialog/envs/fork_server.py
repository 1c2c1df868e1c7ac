"""A process that loads shared data once, and forks the workers that need it.

It is similar to multiprocessing's forkserver, with four differences. It unpickles its input before it forks, so workers
share modules, tokenizer and samples. It refuses to fork if this opened files or started threads. It never reruns the
user's script, which often imports torch. And it is a separate server: multiprocessing has only one per program, which
belongs to the user.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import cloudpickle
import numpy as np

from rl4dialog.core.errors import EnvWorkerError
from rl4dialog.envs.fork_safety import ADVICE, Holdings, check_can_fork

Work = Callable[[int, Connection], None]

# Ctrl-C and a scheduler's signals reach the whole process group; workers ignore them, and the main process ends them.
_PROGRAM = (
    "import signal, sys; [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]; "
    "sys.path[:] = {path!r}; from rl4dialog.envs.fork_server import serve; serve({handles!r})"
)
# Independent of the main process' settings: there is one worker per core, and threads started by libraries do not
# survive a fork.
_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}
_GRACE_S = 5.0


class SilentWorkerError(Exception):
    """A living worker has not answered in time."""


class WorkerTraceback(Exception):
    """The traceback of another process, as the cause of an exception here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class Failure:
    """An exception in a form that can be sent to the main process."""

    message: str
    traceback: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        return cls(f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))

    def as_error(self, message: str, kind: type[Exception] = EnvWorkerError) -> Exception:
        """Create an exception that shows the traceback as its cause."""
        error = kind(message)
        error.__cause__ = WorkerTraceback(self.traceback)
        return error


class ForkServer:
    """The main process' side: starts the server and its workers, communicates with them, and reports how they ended.

    A worker must end when it receives an empty message, or when the main process has died; otherwise it is killed after
    5 seconds.

    Args:
        work: A worker's function, called with its number and its connection to the main process.
        n_workers: Number of workers; with 0, only the checks before forking are performed.

    Attributes:
        pids: Process id of each worker.

    Raises:
        EnvWorkerError: If ``work`` cannot be pickled, cannot be unpickled in the server, or leaves files open or
            threads running there.
    """

    def __init__(self, work: Work, n_workers: int) -> None:
        try:
            pickled = cloudpickle.dumps(work)
        except Exception as error:
            raise EnvWorkerError(
                f"the environments cannot be sent to worker processes: {type(error).__name__}: {error}. {ADVICE}."
            ) from error
        pairs = [Pipe() for _ in range(n_workers + 1)]
        self._control, *self._connections = (ours for ours, _ in pairs)
        handles = [theirs.fileno() for _, theirs in pairs]
        program = _PROGRAM.format(path=[entry for entry in sys.path if isinstance(entry, str)], handles=handles)
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            pass_fds=handles,
            env={**os.environ, **_ENVIRONMENT},
        )
        for _, theirs in pairs:
            theirs.close()
        self.pids = [0] * n_workers
        self._exit_codes: dict[int, int] = {}
        try:
            self._control.send_bytes(pickled)
            answer = self._control.recv()
            if not isinstance(answer, Failure):
                self._await(lambda: all(self.pids))
        except (EOFError, OSError) as error:
            raise self._own_death() from error
        except BaseException:
            self.close()
            raise
        if isinstance(answer, Failure):
            self.close()
            raise answer.as_error(answer.message)

    def send(self, worker: int, request: bytes) -> None:
        """Send a request to a worker; raises ``OSError`` if it has died."""
        self._connections[worker].send_bytes(request)

    def receive(self, worker: int, limit_s: float | None = None) -> bytes:
        """Wait for a reply of a worker; raises ``EOFError`` or ``OSError`` if it has died.

        Raises:
            SilentWorkerError: If there is no reply within the limit.
        """
        if limit_s is not None and not self._connections[worker].poll(limit_s):
            raise SilentWorkerError(f"worker {worker} has not answered for {limit_s} s")
        return self._connections[worker].recv_bytes()

    def exit_code(self, worker: int) -> int | None:
        """Return the exit code of a dead worker; ``None`` if it is unknown."""
        with contextlib.suppress(EOFError, OSError):
            self._await(lambda: worker in self._exit_codes, time.monotonic() + _GRACE_S)
        return self._exit_codes.get(worker)

    def replace(self, worker: int) -> None:
        """Start another process in place of a dead worker.

        Raises:
            EnvWorkerError: If the server has died too.
        """
        self.exit_code(worker)
        self._connections[worker].close()
        self._connections[worker], theirs = Pipe()
        self.pids[worker] = 0
        try:
            self._control.send_bytes(str(worker).encode())
            send_handle(self._control, theirs.fileno(), self._process.pid)
            self._await(lambda: self.pids[worker])
        except (EOFError, OSError) as error:
            raise self._own_death() from error
        finally:
            theirs.close()

    def _await(self, condition: Callable[[], Any], deadline: float | None = None) -> None:
        """Process the server's messages about its workers until a condition holds, or the deadline has passed."""
        while not condition():
            if not self._control.poll(None if deadline is None else max(0.0, deadline - time.monotonic())):
                return
            event, worker, number = self._control.recv()
            if event == "began":
                self.pids[worker] = number
                self._exit_codes.pop(worker, None)
            else:
                self._exit_codes[worker] = number

    def _own_death(self) -> EnvWorkerError:
        self.close()
        return EnvWorkerError(
            f"the process that starts the environment workers died (exit code {self._process.returncode}); its own "
            f"error message, if any, is printed above"
        )

    def close(self) -> None:
        """End all workers, and wait until they have ended."""
        for connection in (*self._connections, self._control):
            # Closing is not enough: another process forked by the main process may hold a copy of the connection.
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
    """Unpickle the work, fork one worker per handle except the first, and serve the main process until it ends."""
    control, *connections = [Connection(handle) for handle in handles]
    before = Holdings.now()
    try:
        work: Work = pickle.loads(control.recv_bytes())
        check_can_fork(before)
    except BaseException as error:
        failure = Failure.of(error)
        is_ours = isinstance(error, EnvWorkerError)
        message = f"the environments cannot be unpickled in a worker process: {failure.message}"
        failure = Failure(str(error) if is_ours else message, failure.traceback)
        with contextlib.suppress(OSError):
            control.send(failure)
        os._exit(1)  # even if threads are running
    # Otherwise the first garbage collection in a worker would write to, and so copy, every page with an object.
    gc.freeze()
    server = _Server(work, control)
    with contextlib.suppress(EOFError, OSError):
        control.send(None)
        server.start(dict(enumerate(connections)))
        server.serve()
    server.end()


class _Server:
    """Forks workers and reports how they end. It has a single thread, because others would not survive a fork."""

    def __init__(self, work: Work, control: Connection) -> None:
        self._work, self._control = work, control
        self._workers: dict[int, int] = {}  # by process id
        # Becomes readable when a worker ends.
        self._child_ended, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Reap workers, and fork replacements on request, until the main process ends or sends an empty message."""
        while True:
            ready = wait([self._control, self._child_ended])
            if self._child_ended in ready:
                self._reap()
            if self._control in ready:
                message = self._control.recv_bytes()
                if not message:
                    return
                self.start({int(message): Connection(recv_handle(self._control))})

    def start(self, connections: dict[int, Connection]) -> None:
        """Fork a worker for each connection."""
        for worker, connection in connections.items():
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                # An inherited copy of another worker's connection would hide that worker's death from the main process.
                for other in (self._control, *connections.values()):
                    if other is not connection:
                        other.close()
                _run(self._work, worker, connection)
            self._workers[pid] = worker
            self._control.send(("began", worker, pid))
        for connection in connections.values():
            connection.close()

    def end(self) -> None:
        """Wait for the workers to end, then kill the remaining ones."""
        deadline = time.monotonic() + _GRACE_S
        while self._workers and (left := deadline - time.monotonic()) > 0:
            wait([self._child_ended], left)
            self._reap()
        for pid in self._workers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _reap(self) -> None:
        if wait([self._child_ended], 0):
            os.read(self._child_ended, 4096)
        # An imported module may have started another child process: wait only for workers.
        for pid in list(self._workers):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with contextlib.suppress(OSError):
                    self._control.send(("ended", self._workers.pop(pid), os.waitstatus_to_exitcode(status)))


def _run(work: Work, worker: int, connection: Connection) -> None:
    """Run a worker; never returns."""
    exit_code = 1
    try:
        # Unlike Python's random generator, numpy's is not reseeded by a fork.
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
