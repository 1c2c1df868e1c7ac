"""Async rewards, such as a judge over HTTP: coroutines that are awaited concurrently.

They run on a separate event loop in a thread that lives as long as the process. Clients can therefore keep connections
open, a notebook's event loop does not interfere, and other rewards are computed in the meantime.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rl4dialog.core.errors import RewardError
from rl4dialog.core.http_requests import MAX_RETRY_AFTER_S, wait_s
from rl4dialog.core.reward_parts import FinishedReplies

Call = Callable[[], Awaitable[Any]]
# Extra time for the work of the tasks themselves.
_GRACE_S = 60.0


class FinalFailure(RewardError):
    """A failure of a coroutine that would not go away in another attempt, so it is not retried."""


class Overloaded(RewardError):
    """A failure that goes away after a while.

    Args:
        message: The message.
        retry_after_s: Shortest wait in seconds before the next attempt.
    """

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = min(retry_after_s, MAX_RETRY_AFTER_S)


@dataclass(frozen=True)
class AsyncCalls:
    """Settings for awaiting coroutines.

    Attributes:
        concurrency: Maximum number of concurrent coroutines.
        timeout_s: Time limit of each coroutine, in seconds.
        retries: How often a coroutine that fails or times out is restarted.
        retry_wait_s: Seconds before the first retry, doubled for each further one. A coroutine can ask for a longer
            wait by raising :class:`Overloaded`.
    """

    concurrency: int = 8
    timeout_s: float = 60.0
    retries: int = 2
    retry_wait_s: float = 1.0

    def start(self, calls: Sequence[Call], keep_going: bool) -> Future[list[Any]]:
        """Start to await coroutines, without blocking.

        Args:
            calls: Functions that create the coroutines.
            keep_going: Await all of them despite failures; otherwise the first final failure cancels the others.

        Returns:
            A future of each coroutine's result or final exception.
        """
        if not calls:
            nothing: Future[list[Any]] = Future()
            nothing.set_result([])
            return nothing
        return asyncio.run_coroutine_threadsafe(self._await_all(calls, keep_going), _event_loop(os.getpid()))

    def longest_s(self, n_calls: int) -> float:
        """Seconds after which this many calls have returned or failed, unless one blocks the event loop."""
        waits = sum(wait_s(1 + retry, self.retry_wait_s, MAX_RETRY_AFTER_S) for retry in range(self.retries))
        rounds = math.ceil(n_calls / self.concurrency)
        return _GRACE_S + rounds * ((self.retries + 1) * self.timeout_s + waits)

    async def _await_all(self, calls: Sequence[Call], keep_going: bool) -> list[Any]:
        slots = asyncio.Semaphore(self.concurrency)
        tasks = [asyncio.create_task(self._await_one(call, slots)) for call in calls]
        until = asyncio.ALL_COMPLETED if keep_going else asyncio.FIRST_EXCEPTION
        try:
            await asyncio.wait(tasks, return_when=until)
        finally:
            for task in tasks:
                task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    async def _await_one(self, call: Call, slots: asyncio.Semaphore) -> Any:
        least_wait = 0.0
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(wait_s(attempt, self.retry_wait_s, least_wait))
            try:
                async with slots:
                    return await asyncio.wait_for(call(), self.timeout_s)
            except FinalFailure:
                raise
            except Exception as error:
                failure = error
                least_wait = error.retry_after_s if isinstance(error, Overloaded) else 0.0
        if isinstance(failure, asyncio.TimeoutError) and not str(failure):
            raise TimeoutError(f"no answer within {self.timeout_s:g} s (reward_fn.async_calls.timeout_s)") from failure
        raise failure


class AsyncReward:
    """A coroutine function as a reward that is scored in the main process.

    Args:
        function: For a single last reply of an episode, ``async def f(prompt_text, gen_text, ref_texts, meta_info) ->
            float``; for a batch, a coroutine function with the parameters of a ``BatchedRewardFunction``.
        per_reply: Whether the function scores single replies.
    """

    def __init__(self, function: Callable[..., Awaitable[Any]], per_reply: bool) -> None:
        self._function, self.per_reply = function, per_reply

    def calls(self, replies: FinishedReplies) -> list[Call]:
        """Return the coroutines to await: one for each last reply of an episode, or one for the batch."""
        texts = (replies.prompt_texts, replies.gen_texts, replies.ref_texts)
        if not self.per_reply:
            return [functools.partial(self._function, *texts, replies.dones, replies.meta_infos)]
        rows = zip(*texts, replies.meta_infos, strict=True)
        return [functools.partial(self._function, *row) for row, done in zip(rows, replies.dones, strict=True) if done]


def is_async(function: Any) -> bool:
    """Whether calling an object creates a coroutine."""
    return any(inspect.iscoroutinefunction(f) for f in (function, getattr(type(function), "__call__", None)))  # noqa: B004


@functools.cache
def _event_loop(process_id: int) -> asyncio.AbstractEventLoop:
    """The event loop of this process; a forked process inherits the loop but not its thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="async rewards", daemon=True).start()
    return loop
