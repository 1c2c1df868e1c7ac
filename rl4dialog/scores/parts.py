"""Converts any kind of reward, also a coroutine such as a judge over HTTP, to a list of weighted parts."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from rl4dialog.core.async_calls import Call
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import (
    BatchedConversationReward,
    BatchedRewardFunction,
    ConversationReward,
    RewardFunction,
    SentenceRewardFunction,
)
from rl4dialog.core.reward_parts import FinishedReplies, RewardPart

_FUNCTION_PARAMETERS = ("prompt_text", "gen_text", "ref_texts", "meta_info")


class AsyncReward:
    """A coroutine function as a reward that is scored in the main process; see :mod:`rl4dialog.core.async_calls`.

    With `per_reply`, it scores a last reply of an episode, ``async def f(prompt_text, gen_text, ref_texts, meta_info)
    -> float``; otherwise a batch, with the parameters of a ``BatchedRewardFunction``.
    """

    def __init__(self, function: Callable[..., Awaitable[Any]], per_reply: bool) -> None:
        self._function, self.per_reply = function, per_reply

    def calls(self, replies: FinishedReplies) -> list[Call]:
        """Return the coroutines to await, one for each of :meth:`rows`."""
        texts = (replies.prompt_texts, replies.gen_texts, replies.ref_texts)
        if not self.per_reply:
            return [functools.partial(self._function, *texts, replies.dones, replies.meta_infos)]
        rows = zip(*texts, replies.meta_infos, strict=True)
        return [functools.partial(self._function, *row) for row, done in zip(rows, replies.dones, strict=True) if done]

    def rows(self, replies: FinishedReplies) -> list[list[int]]:
        """Rows that each coroutine scores: one last reply of an episode, or the batch."""
        if not self.per_reply:
            return [list(range(len(replies)))]
        return [[row] for row, done in enumerate(replies.dones) if done]


class DelegatedReward:
    """A reward whose arguments decide of which kind it is: that of its ``delegate``."""

    delegate: Any


class FunctionReward(SentenceRewardFunction):
    """A plain function ``f(prompt_text, gen_text, ref_texts, meta_info) -> float`` as a reward."""

    def __init__(self, function: Callable[..., float]) -> None:
        self._function = function

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        return self._function(prompt_text, gen_text, ref_texts, meta_info)


def as_parts(reward: Any, name: str = "reward") -> list[RewardPart]:
    """Return the parts of a reward; a single one has this name in the logs.

    A reward is a composite, a ``RewardFunction``, a ``BatchedRewardFunction``, an object with the ``__call__`` of
    either class, a ``ConversationReward`` or ``BatchedConversationReward``, or a plain function. Batched rewards,
    functions, and ``score`` of a ``SentenceRewardFunction`` can be ``async``. A ``DelegatedReward`` stands for one.
    """
    parts = getattr(reward, "parts", None)
    if isinstance(parts, list):
        return [replace(part, in_main_process=_is_batched(part.function)) for part in parts]
    function = _as_function(reward, name)
    return [RewardPart(name, 1.0, function, in_main_process=_is_batched(function))]


def _as_function(reward: Any, name: str) -> Any:
    if isinstance(reward, DelegatedReward):
        reward = reward.delegate
    names = _parameter_names(reward) if callable(reward) else []
    score: Any = getattr(reward, "score", None)
    if isinstance(reward, SentenceRewardFunction) and _is_async(score):
        return AsyncReward(score, per_reply=True)
    if isinstance(reward, (AsyncReward, ConversationReward, BatchedConversationReward)):
        return reward
    if callable(reward) and _is_batched(reward):
        return AsyncReward(reward, per_reply=False) if _is_async(reward) else reward
    if isinstance(reward, RewardFunction) or ("action" in names and "done" in names):
        if _is_async(reward):
            whole = f"use a coroutine that scores whole replies: async def f({', '.join(_FUNCTION_PARAMETERS)})"
            raise ConfigError(f"reward {name!r} is called after every token and cannot be async; {whole}")
        return reward
    if callable(reward) and _accepts_four(reward):
        return AsyncReward(reward, per_reply=True) if _is_async(reward) else FunctionReward(reward)
    kinds = "RewardFunction, SentenceRewardFunction, BatchedRewardFunction, ConversationReward"
    raise ConfigError(
        f"reward {name!r} is not a reward: use a function f({', '.join(_FUNCTION_PARAMETERS)}) -> float, or a subclass "
        f"of {kinds} or BatchedConversationReward"
    )


def _is_batched(function: Any) -> bool:
    """Whether a reward is scored in the main process; RL4LMs' classes are recognized by their parameters."""
    if isinstance(function, (RewardFunction, ConversationReward)):
        return False
    names = _parameter_names(function)
    is_ours = isinstance(function, (BatchedRewardFunction, BatchedConversationReward, AsyncReward))
    return is_ours or "dones" in names or names[:1] == ["prompt_texts"]


def _is_async(function: Any) -> bool:
    return any(inspect.iscoroutinefunction(f) for f in (function, getattr(type(function), "__call__", None)))  # noqa: B004


def _parameter_names(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _accepts_four(function: Any) -> bool:
    with contextlib.suppress(TypeError, ValueError):
        return bool(inspect.signature(function).bind(*_FUNCTION_PARAMETERS))
    return False
