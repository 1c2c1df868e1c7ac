"""Worker processes that are replaced when they die, and brought to the same state."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rl4dialog.envs.fork_server import ForkServer, Work

_logger = logging.getLogger(__name__)
# A request that has killed three workers would kill the next one too.
_MAX_DEATHS_IN_A_ROW = 3


class RestartingWorkers:
    """Like :class:`ForkServer`, but replaces dead workers transparently.

    A worker must answer each request with one reply, and its behavior must depend only on its requests: a new worker
    repeats the requests of the dead one. :meth:`begin_anew` keeps the list of requests short.

    Args:
        work: A worker's function, called with its number and its connection to the main process.
        n_workers: Number of workers.
        max_restarts: Number of dead workers to replace, in total; after that, a death raises ``EOFError`` or
            ``OSError``.

    Attributes:
        n_restarts: Number of replaced workers so far.

    Raises:
        EnvWorkerError: If ``work`` cannot be pickled or unpickled, or the process that forks the workers has died.
    """

    def __init__(self, work: Work, n_workers: int, max_restarts: int) -> None:
        self._max_restarts = max_restarts
        self.n_restarts = 0
        self._server = ForkServer(work, n_workers)
        self._requests: list[list[bytes]] = [[] for _ in range(n_workers)]
        self._n_deaths_in_a_row = [0] * n_workers

    @property
    def pids(self) -> list[int]:
        """Process ids of the current workers."""
        return self._server.pids

    def exit_code(self, worker: int) -> int | None:
        """Return the exit code of a dead worker; ``None`` if it is unknown."""
        return self._server.exit_code(worker)

    def send(self, worker: int, request: bytes) -> None:
        """Send a request to a worker."""
        self._requests[worker].append(request)
        try:
            self._server.send(worker, request)
        except OSError as error:
            self._replace(worker, error)

    def receive(self, worker: int, limit_s: float | None = None) -> bytes:
        """Return the next reply of a worker.

        Raises:
            SilentWorkerError: If the worker, or its replacement, does not reply within the limit.
        """
        while True:
            try:
                reply = self._server.receive(worker, limit_s)
            except (EOFError, OSError) as error:
                self._replace(worker, error, limit_s)
            else:
                self._n_deaths_in_a_row[worker] = 0
                return reply

    def begin_anew(self, worker: int, requests: Sequence[bytes]) -> None:
        """Replace a worker's list of requests by a shorter one that leads to the same state."""
        self._requests[worker] = list(requests)

    def close(self) -> None:
        """End all workers, and wait until they have ended."""
        self._server.close()

    def _replace(self, worker: int, death: Exception, limit_s: float | None = None) -> None:
        """Start a process in place of a dead one, and repeat all requests up to the current one."""
        *answered, last = self._requests[worker]
        while True:
            self._n_deaths_in_a_row[worker] += 1
            is_hopeless = self._n_deaths_in_a_row[worker] > _MAX_DEATHS_IN_A_ROW
            if is_hopeless or self.n_restarts >= self._max_restarts:
                raise death
            self._start_another(worker)
            try:
                for request in answered:
                    self._server.send(worker, request)
                    self._server.receive(worker, limit_s)
                self._server.send(worker, last)
                return
            except (EOFError, OSError) as error:
                death = error

    def _start_another(self, worker: int) -> None:
        died, code = self.pids[worker], self.exit_code(worker)
        self.n_restarts += 1
        self._server.replace(worker)
        _logger.warning(
            "environment worker %d (process %d) died with exit code %s; replaced by process %d (restart %d of %d)",
            *(worker, died, "unknown" if code is None else code, self.pids[worker], self.n_restarts),
            self._max_restarts,
        )
