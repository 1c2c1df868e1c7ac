"""Async rewards, such as a judge over HTTP: coroutines that are awaited concurrently.

Other rewards are computed in the meantime; see :mod:`rl4dialog.core.async_calls`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from rl4dialog.core.async_calls import Call
from rl4dialog.core.reward_parts import FinishedReplies


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
