"""Worker processes of which any may die: another takes its place, and is brought to where the dead one was."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rl4dialog.envs.fork_server import ForkServer, Work

_logger = logging.getLogger(__name__)
# A request that has killed three processes will kill the fourth.
_MAX_DEATHS_IN_A_ROW = 3


class RestartingWorkers:
    """The same to its user as a :class:`ForkServer`, but a worker's death shows only in the time it takes.

    A worker must answer each request with one reply, and what it does must follow from its requests alone: a new one
    is given those that the dead one has had. :meth:`begin_anew` keeps them few.

    Args:
        work: What a worker does, given its number and its connection to the main process.
        n_workers: How many there are.
        max_restarts: Deaths to make good, of all workers together; the next one raises ``EOFError`` or ``OSError``.

    Attributes:
        n_restarts: Deaths so far.

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
        """Process ids of the workers that live now."""
        return self._server.pids

    def exit_code(self, worker: int) -> int | None:
        """How a worker that was found dead has ended; ``None`` if nobody knows."""
        return self._server.exit_code(worker)

    def send(self, worker: int, request: bytes) -> None:
        """Give a worker something to do."""
        self._requests[worker].append(request)
        try:
            self._server.send(worker, request)
        except OSError as error:
            self._replace(worker, error)

    def receive(self, worker: int, limit_s: float | None = None) -> bytes:
        """The next reply of a worker.

        Raises:
            SilentWorkerError: If it, or what takes its place, says nothing for so many seconds.
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
        """Forget a worker's requests: these make of a new one what it is now."""
        self._requests[worker] = list(requests)

    def close(self) -> None:
        """End all workers, and wait for it."""
        self._server.close()

    def _replace(self, worker: int, death: Exception, limit_s: float | None = None) -> None:
        """Start a process in the place of a dead one, and let it do all over again, up to the request under way."""
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
            "environment worker %d (process %d) died, exit code %s; process %d takes its place (restart %d of %d)",
            *(worker, died, "unknown" if code is None else code, self.pids[worker], self.n_restarts),
            self._max_restarts,
        )
