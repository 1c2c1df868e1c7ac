"""Rewards that wait for something, such as a judge behind HTTP: coroutines, awaited together.

They run on an event loop in a thread of its own that lives as long as the process. So a client that keeps connections
open can be used again and again, a notebook's own loop is not in the way, and other rewards are computed meanwhile.
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

Call = Callable[[], Awaitable[Any]]
# What tasks may need beside the time that they wait.
_GRACE_S = 60.0


@dataclass(frozen=True)
class AsyncCalls:
    """How coroutines are awaited.

    Attributes:
        concurrency: How many are under way at the same time.
        timeout_s: How long each may take, in seconds.
        retries: How often one that raises or takes too long is started anew.
        retry_wait_s: Seconds before that; twice as many before each further time.
    """

    concurrency: int = 8
    timeout_s: float = 60.0
    retries: int = 2
    retry_wait_s: float = 1.0

    def start(self, calls: Sequence[Call], keep_going: bool) -> Future[list[Any]]:
        """Begin to await coroutines, and return at once.

        Args:
            calls: Each makes a coroutine.
            keep_going: Await all of them whatever happens; else the first that finally fails cancels the others.

        Returns:
            What each coroutine returned, or the exception that it raised in the end.
        """
        if not calls:
            nothing: Future[list[Any]] = Future()
            nothing.set_result([])
            return nothing
        return asyncio.run_coroutine_threadsafe(self._await_all(calls, keep_going), _event_loop(os.getpid()))

    def longest_s(self, n_calls: int) -> float:
        """Seconds after which so many calls have all returned or failed, unless one of them blocks the event loop."""
        waits = sum(self.retry_wait_s * 2**attempt for attempt in range(self.retries))
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
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(self.retry_wait_s * 2 ** (attempt - 1))
            try:
                async with slots:
                    return await asyncio.wait_for(call(), self.timeout_s)
            except Exception as error:
                failure = error
        if isinstance(failure, asyncio.TimeoutError) and not str(failure):
            raise TimeoutError(f"no answer within {self.timeout_s:g} s") from failure
        raise failure


class AsyncReward:
    """A coroutine function as a reward that is scored in the main process.

    Args:
        function: For one reply that is the last of its episode, ``async def f(prompt_text, gen_text, ref_texts,
            meta_info) -> float``; or for a whole batch, with the parameters of a ``BatchedRewardFunction``.
        per_reply: Which of the two.
    """

    def __init__(self, function: Callable[..., Awaitable[Any]], per_reply: bool) -> None:
        self._function, self.per_reply = function, per_reply

    def calls(
        self,
        prompt_texts: list[str],
        gen_texts: list[str],
        ref_texts: list[list[str]],
        dones: list[bool],
        meta_infos: list[dict[str, Any]],
    ) -> list[Call]:
        """What has to be awaited: a coroutine for each reply that is the last of its episode, or one for all."""
        if not self.per_reply:
            return [functools.partial(self._function, prompt_texts, gen_texts, ref_texts, dones, meta_infos)]
        rows = zip(prompt_texts, gen_texts, ref_texts, meta_infos, strict=True)
        return [functools.partial(self._function, *row) for row, done in zip(rows, dones, strict=True) if done]


def is_async(function: Any) -> bool:
    """Whether calling it makes a coroutine."""
    return any(inspect.iscoroutinefunction(f) for f in (function, getattr(type(function), "__call__", None)))  # noqa: B004


@functools.cache
def _event_loop(process_id: int) -> asyncio.AbstractEventLoop:
    """The loop of this process: a forked one has a copy of the loop but not of its thread."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="async rewards", daemon=True).start()
    return loop
