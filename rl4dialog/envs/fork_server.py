"""A process that loads modules and shared data once, and forks the workers that need them.

multiprocessing's forkserver shares modules only, reruns the user's script, which often imports torch, and exists once
per program, where it belongs to the user.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import cloudpickle
import numpy as np

from rl4dialog.core.errors import EnvWorkerError
from rl4dialog.envs.fork_safety import ADVICE, check_can_fork, holdings

# Ctrl-C and a scheduler's signals reach the whole process group; workers ignore them, and the main process ends them.
_PROGRAM = (
    "import signal, sys; [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM)]; "
    "sys.path[:] = {path!r}; from rl4dialog.envs.fork_server import serve; serve({handle})"
)
# Independent of the main process' settings: there is one worker per core, and threads started by libraries do not
# survive a fork.
_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "TOKENIZERS_PARALLELISM": "false",
}
_GRACE_S = 5.0


@dataclass(frozen=True)
class Failure:
    """An exception in a form that can be sent to the main process.

    Attributes:
        message: Type and text.
        cause: Its traceback.
        env: Index in its worker of the environment that raised it.
        is_missing_attribute: Whether it says that an environment has no such attribute.
    """

    message: str
    cause: Exception
    env: int = 0
    is_missing_attribute: bool = False

    @classmethod
    def of(cls, error: BaseException, env: int = 0, is_missing_attribute: bool = False) -> Failure:
        message = str(error) if isinstance(error, EnvWorkerError) else f"{type(error).__name__}: {error}"
        return cls(message, RemoteTraceback("".join(traceback.format_exception(error))), env, is_missing_attribute)


class ForkServer:
    """The main process' side: starts the server, and has it start workers.

    A worker must end when the main process has died or asks for it; otherwise it is killed 5 seconds later.

    Args:
        target: A worker's function. Its arguments are its connection to the main process, a function that unpickles
            ``own``, and those of :meth:`start`.
        own: Objects that each worker unpickles for itself, so that what this opens belongs to one process. The server
            also does, once, so that their modules are loaded there.
        shared: Constant objects to which ``own`` can refer, such as the tokenizer; all workers share them.

    Raises:
        EnvWorkerError: If they cannot be pickled, cannot be unpickled in the server, or leave files open or threads
            running there.
    """

    def __init__(self, target: Callable[..., None], own: Any, shared: Sequence[Any] = ()) -> None:
        try:
            pickled = cloudpickle.dumps((target, list(shared), dumps(own, shared)))
        except Exception as error:
            raise EnvWorkerError(
                f"the environments cannot be sent to worker processes: {type(error).__name__}: {error}. {ADVICE}."
            ) from error
        self._control, theirs = Pipe()
        program = _PROGRAM.format(path=[entry for entry in sys.path if isinstance(entry, str)], handle=theirs.fileno())
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **_ENVIRONMENT},
            )
        failure = self._ask(pickled)
        if failure is not None:
            self.close()
            raise EnvWorkerError(
                f"the environments cannot be loaded in worker processes: {failure.message}"
            ) from failure.cause

    def start(self, *arguments: Any) -> tuple[int, Connection]:
        """Start a worker. Returns its process id, and the connection to it."""
        ours, theirs = Pipe()
        with theirs:
            return self._ask(pickle.dumps(("start", arguments)), theirs), ours

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a worker that has died."""
        return self._ask(pickle.dumps(("exit_code", pid)))  # type: ignore[no-any-return]

    def _ask(self, request: bytes, connection: Connection | None = None) -> Any:
        try:
            self._control.send_bytes(request)
            if connection is not None:
                send_handle(self._control, connection.fileno(), self._process.pid)
            return self._control.recv()
        except (EOFError, OSError) as error:
            raise EnvWorkerError(
                f"the process that starts the environment workers died (exit code {self._process.wait()}); its own "
                f"error message, if any, is printed above"
            ) from error

    def close(self) -> None:
        """Wait until all workers have ended, and end the server."""
        # Closing is not enough: another process forked by the main process may hold a copy of the connection.
        with contextlib.suppress(OSError):
            self._control.send(None)
        self._control.close()
        try:
            self._process.wait(2 * _GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def dumps(value: Any, shared: Sequence[Any]) -> bytes:
    """Pickle an object, with references to ``shared`` instead of copies."""
    buffer = io.BytesIO()
    _Pickler(buffer, shared).dump(value)
    return buffer.getvalue()


class _Pickler(cloudpickle.CloudPickler):
    def __init__(self, file: io.BytesIO, shared: Sequence[Any]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._places = {id(value): place for place, value in enumerate(shared)}

    def persistent_id(self, value: Any) -> int | None:
        return self._places.get(id(value))

    def reducer_override(self, value: Any) -> Any:
        # cloudpickle would read the file and send its contents.
        if isinstance(value, io.TextIOWrapper) and value not in (sys.stdin, sys.stdout, sys.stderr):
            raise pickle.PicklingError(f"cannot pickle the open file {value.name!r}")
        return super().reducer_override(value)


# -- in the server ----------------------------------------------------------------------------------------------------


def serve(handle: int) -> None:
    """Load what the workers need, and serve the main process until it ends."""
    control = Connection(handle)
    before = holdings()
    try:
        target, shared, own = control.recv()
        _loads(own, shared)
        check_can_fork(before)
    except BaseException as error:
        with contextlib.suppress(OSError):
            control.send(Failure.of(error))
        os._exit(1)  # even if threads are running
    # Otherwise the first garbage collection in a worker would write to, and so copy, every page with an object.
    gc.freeze()
    workers: dict[int, ForkProcess] = {}
    with contextlib.suppress(EOFError, OSError):
        control.send(None)
        while request := control.recv():
            command, argument = request
            if command == "start":
                with Connection(recv_handle(control)) as connection:
                    load = functools.partial(_loads, own, shared)
                    worker = multiprocessing.get_context("fork").Process(
                        target=_run, args=(control, target, connection, load, *argument)
                    )
                    worker.start()
                workers[worker.pid or 0] = worker
                control.send(worker.pid)
            else:
                workers[argument].join(_GRACE_S)
                control.send(workers[argument].exitcode)
    deadline = time.monotonic() + _GRACE_S
    for worker in workers.values():
        worker.join(max(0.0, deadline - time.monotonic()))
        worker.kill()


def _run(control: Connection, target: Callable[..., None], *arguments: Any) -> None:
    """Run a worker."""
    # A copy would hide the end of the server from the main process.
    control.close()
    # Unlike Python's random generator, numpy's is not reseeded by a fork.
    np.random.seed()
    target(*arguments)


def _loads(pickled: bytes, shared: Sequence[Any]) -> Any:
    unpickler = pickle.Unpickler(io.BytesIO(pickled))
    unpickler.persistent_load = shared.__getitem__  # type: ignore[method-assign, assignment]
    return unpickler.load()
