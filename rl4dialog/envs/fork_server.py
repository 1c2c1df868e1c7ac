"""A process that loads once what many workers need, and forks them.

It does what multiprocessing's forkserver does, with four differences. What it is given is unpickled before it forks,
so that the workers share modules, tokenizer and samples. It refuses to fork with files open or threads running that
this has brought. It never runs the user's script again, which often imports torch. And it is a server of our own:
multiprocessing has one for the whole program, which belongs to the user.
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

# Ctrl-C reaches the whole process group, and so does what a scheduler sends before it takes a machine away; it is the
# main process that tells the others to end.
_PROGRAM = (
    "import signal, sys; [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]; "
    "sys.path[:] = {path!r}; from rl4dialog.envs.fork_server import serve; serve({handles!r})"
)
# Whatever the main process is to do: there are as many workers as cores, and threads that a library started do not
# survive a fork.
_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}
_GRACE_S = 5.0


class SilentWorkerError(Exception):
    """A worker that lives has not answered in time."""


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
    """The main process' side: starts the server and its workers, talks to them, and tells how they ended.

    A worker is to end when it receives an empty message, or when the main process has died; one that does not within
    5 seconds is killed.

    Args:
        work: What a worker does, given its number and its connection to the main process.
        n_workers: How many there are; with none, all is checked that workers would be forked with.

    Attributes:
        pids: Of each worker.

    Raises:
        EnvWorkerError: If ``work`` cannot be pickled, cannot be unpickled in the server, or leaves files open there or
            threads running.
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
        """Give a worker something to do; raises ``OSError`` if it has died."""
        self._connections[worker].send_bytes(request)

    def receive(self, worker: int, limit_s: float | None = None) -> bytes:
        """Wait for what a worker has to say; raises ``EOFError`` or ``OSError`` if it has died.

        Raises:
            SilentWorkerError: If it says nothing for so many seconds.
        """
        if not self._connections[worker].poll(limit_s):
            raise SilentWorkerError(f"worker {worker} has not answered for {limit_s} s")
        return self._connections[worker].recv_bytes()

    def exit_code(self, worker: int) -> int | None:
        """How a worker that was found dead has ended; ``None`` if nobody knows."""
        with contextlib.suppress(EOFError, OSError):
            self._await(lambda: worker in self._exit_codes, time.monotonic() + _GRACE_S)
        return self._exit_codes.get(worker)

    def replace(self, worker: int) -> None:
        """Start another process in the place of a worker that was found dead.

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
        """Note what the server tells of its workers until a condition holds, or the time has come."""
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
            f"error, if it had one, stands above"
        )

    def close(self) -> None:
        """End all workers, and wait for it."""
        for connection in (*self._connections, self._control):
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
    """Unpickle the work, fork a worker for each handle but the first, and serve the main process until it is over."""
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
        os._exit(1)  # whatever thread is running
    # Else the first collection in a worker would write to, and so copy, every page that holds an object.
    gc.freeze()
    server = _Server(work, control)
    with contextlib.suppress(EOFError, OSError):
        control.send(None)
        server.start(dict(enumerate(connections)))
        server.serve()
    server.end()


class _Server:
    """Forks workers and tells the main process how they end. It has one thread: more would not survive a fork."""

    def __init__(self, work: Work, control: Connection) -> None:
        self._work, self._control = work, control
        self._workers: dict[int, int] = {}  # by process id
        # Becomes readable when a worker has ended.
        self._child_ended, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Reap workers, and fork others in their place, until the main process says that it is over, or has died."""
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
                # Whoever holds the other end of a connection hides from the main process that its worker has died.
                for other in (self._control, *connections.values()):
                    if other is not connection:
                        other.close()
                _run(self._work, worker, connection)
            self._workers[pid] = worker
            self._control.send(("began", worker, pid))
        for connection in connections.values():
            connection.close()

    def end(self) -> None:
        """Leave the workers a while to end by themselves."""
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
        # A module that was imported may have started a process of its own: only workers are waited for.
        for pid in list(self._workers):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with contextlib.suppress(OSError):
                    self._control.send(("ended", self._workers.pop(pid), os.waitstatus_to_exitcode(status)))


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
