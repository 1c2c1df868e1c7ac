"""Converts any kind of reward to a list of weighted parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.protocols import (
    BatchedConversationReward,
    BatchedRewardFunction,
    ConversationReward,
    RewardFunction,
    SentenceRewardFunction,
)
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.rewards.async_reward import AsyncReward, is_async

_FUNCTION_PARAMETERS = ("prompt_text", "gen_text", "ref_texts", "meta_info")


class DelegatedReward:
    """A reward whose arguments decide of which kind it is.

    Attributes:
        delegate: The reward of this kind.
    """

    delegate: Any


class FunctionReward(SentenceRewardFunction):
    """A plain function ``f(prompt_text, gen_text, ref_texts, meta_info) -> float`` as a reward."""

    def __init__(self, function: Callable[..., float]) -> None:
        self._function = function

    def score(self, prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        return self._function(prompt_text, gen_text, ref_texts, meta_info)


def as_parts(reward: Any, name: str = "reward") -> list[RewardPart]:
    """Return the parts of a reward.

    Args:
        reward: A composite, a ``RewardFunction``, a ``BatchedRewardFunction``, an object with the ``__call__`` of
            either class, a ``ConversationReward`` or ``BatchedConversationReward``, or a plain function. Batched
            rewards, functions, and ``score`` of a ``SentenceRewardFunction`` can be ``async``. A ``DelegatedReward``
            stands for one of these.
        name: Name of a single part in the logs.
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
    if isinstance(reward, SentenceRewardFunction) and is_async(score):
        return AsyncReward(score, per_reply=True)
    if isinstance(reward, (AsyncReward, ConversationReward, BatchedConversationReward)):
        return reward
    if callable(reward) and _is_batched(reward):
        return AsyncReward(reward, per_reply=False) if is_async(reward) else reward
    if isinstance(reward, RewardFunction) or ("action" in names and "done" in names):
        if is_async(reward):
            raise ConfigError(
                f"reward {name!r} is called after every token and cannot be async; use a coroutine that scores whole "
                f"replies: async def f({', '.join(_FUNCTION_PARAMETERS)})"
            )
        return reward
    if callable(reward) and _accepts_four(reward):
        return AsyncReward(reward, per_reply=True) if is_async(reward) else FunctionReward(reward)
    raise ConfigError(
        f"reward {name!r} is not a reward: use a function f({', '.join(_FUNCTION_PARAMETERS)}) -> float, or a subclass "
        f"of RewardFunction, SentenceRewardFunction, BatchedRewardFunction, ConversationReward or "
        f"BatchedConversationReward"
    )


def _is_batched(function: Any) -> bool:
    """Whether a reward is scored in the main process; RL4LMs' classes are recognized by their parameters."""
    if isinstance(function, (BatchedRewardFunction, BatchedConversationReward, AsyncReward)):
        return True
    if isinstance(function, (RewardFunction, ConversationReward)):
        return False
    names = _parameter_names(function)
    return "dones" in names or names[:1] == ["prompt_texts"]


def _parameter_names(function: Any) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def _accepts_four(function: Any) -> bool:
    try:
        inspect.signature(function).bind(*_FUNCTION_PARAMETERS)
    except (TypeError, ValueError):
        return False
    return True
