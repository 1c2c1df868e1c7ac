"""Coroutines that are awaited concurrently, with time limits and retries, such as requests to a server.

They run on a separate event loop in a thread that lives as long as the process. Clients can therefore keep connections
open, a notebook's event loop does not interfere, and other work is done in the meantime.
"""

from __future__ import annotations

import asyncio
import functools
import math
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from rl4dialog.core.errors import EndpointError

T = TypeVar("T")
Call = Callable[[], Awaitable[Any]]
MAX_RETRY_AFTER_S = 60.0
"""A server that asks for a longer wait is asked again after this time."""
# Extra time for the work of the tasks themselves.
_GRACE_S = 60.0


class FinalFailure(EndpointError):
    """A failure of a coroutine that would not go away in another attempt, so it is not retried."""

    n_attempts = 1


class Overloaded(EndpointError):
    """A failure that goes away after a while: another attempt should wait for at least these seconds."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:  # a copy for other processes sets it later
        super().__init__(message)
        self.retry_after_s = min(retry_after_s, MAX_RETRY_AFTER_S)


@dataclass(frozen=True)
class AsyncCalls:
    """How coroutines are awaited: how many at once, for how long each, and how often one that fails is restarted.

    The wait before the first retry is doubled for each further one. A coroutine can ask for a longer one by raising
    :class:`Overloaded`. The key is that of these settings, for messages.
    """

    concurrency: int = 8
    timeout_s: float = 60.0
    retries: int = 2
    retry_wait_s: float = 1.0
    key: str = "reward_fn.async_calls"

    def start(self, calls: Sequence[Call], keep_going: bool) -> Future[list[Any]]:
        """Start to await coroutines; if it is not to keep going, the first final failure cancels the others."""
        if not calls:
            nothing: Future[list[Any]] = Future()
            nothing.set_result([])
            return nothing
        return in_background(self._await_all(calls, keep_going))

    def longest_s(self, n_calls: int) -> float:
        """Seconds after which this many calls have returned or failed, unless one blocks the event loop."""
        waits = sum(wait_s(1 + retry, self.retry_wait_s, MAX_RETRY_AFTER_S) for retry in range(self.retries))
        rounds = math.ceil(n_calls / self.concurrency)
        return _GRACE_S + rounds * ((self.retries + 1) * self.timeout_s + waits)

    async def _await_all(self, calls: Sequence[Call], keep_going: bool) -> list[Any]:
        slots = asyncio.Semaphore(self.concurrency)
        tasks = [asyncio.create_task(self.attempt(call, slots)) for call in calls]
        until = asyncio.ALL_COMPLETED if keep_going else asyncio.FIRST_EXCEPTION
        try:
            await asyncio.wait(tasks, return_when=until)
        finally:
            for task in tasks:
                task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def attempt(self, call: Call, slots: AbstractAsyncContextManager[None]) -> Any:
        """Await a coroutine when there is a slot, with time limit and retries; raises what the last attempt raised."""
        least_wait = 0.0
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(wait_s(attempt, self.retry_wait_s, least_wait))
            try:
                async with slots:
                    return await asyncio.wait_for(call(), self.timeout_s)
            except FinalFailure as error:
                error.n_attempts = attempt + 1
                raise
            except Exception as error:
                failure = error
                least_wait = error.retry_after_s if isinstance(error, Overloaded) else 0.0
        if isinstance(failure, asyncio.TimeoutError) and not str(failure):
            raise TimeoutError(f"no answer within {self.timeout_s:g} s ({self.key}.timeout_s)") from failure
        raise failure

    def attempts(self, error: BaseException) -> str:
        """The number of attempts before an error, in words."""
        n = error.n_attempts if isinstance(error, FinalFailure) else 1 + self.retries
        return f"{n} attempt{'s' if n > 1 else ''}"


def wait_s(n_failures: int, first_s: float, at_least_s: float = 0.0) -> float:
    """Seconds before another attempt: the first wait, doubled for each further failure, or what the server asked."""
    return float(max(first_s * 2 ** (n_failures - 1), at_least_s))


def in_background(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the event loop of this process, without blocking."""
    return asyncio.run_coroutine_threadsafe(coroutine, _event_loop(os.getpid()))


@functools.cache
def _event_loop(process_id: int) -> asyncio.AbstractEventLoop:
    """The event loop of this process; a forked process inherits the loop but not its thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="async calls", daemon=True).start()
    return loop
