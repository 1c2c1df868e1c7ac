"""Behaviour cloning: imitation of all conversations, or of the best ones."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import Tensor

from rl4dialog.algorithms.offline.base import OfflineAlgorithm
from rl4dialog.core.errors import ConfigError
from rl4dialog.data.splits import share_of
from rl4dialog.functional.replies import Replies
from rl4dialog.rollouts.conversation_log import ConversationLog

_logger = logging.getLogger(__name__)


class BC(OfflineAlgorithm):
    """Behaviour cloning: the cross-entropy of the agent's tokens, without rewards."""

    needs_rewards = False
    policy_kinds = ("plain",)

    def _terms(self, batch: Replies) -> dict[str, Tensor]:
        loss = self.imitation_loss(batch)
        return {"policy_loss": loss, "loss": loss}


class FilteredBC(BC):
    """Behaviour cloning of the conversations with the highest returns (%BC; Chen et al. 2021, arXiv 2106.01345).

    Args:
        args: Arguments of :class:`BC`.
        top_share: Share of conversations to keep, those with the highest returns; of equal ones, the first.
        min_return: Lowest return to keep, instead of ``top_share``.
        kwargs: Keyword arguments of :class:`BC`.
    """

    needs_rewards = True

    def __init__(
        self,
        *args: Any,
        top_share: Annotated[float, Field(gt=0, lt=1)] | None = None,
        min_return: float | None = None,
        **kwargs: Any,
    ) -> None:
        self.top_share, self.min_return = top_share, min_return
        super().__init__(*args, **kwargs)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        super().check_arguments(args)
        if (args.get("top_share") is None) == (args.get("min_return") is None):
            raise ConfigError("alg.id: filtered_bc needs one of alg.args.top_share and alg.args.min_return")

    @classmethod
    def check_returns(cls, returns: np.ndarray, args: Mapping[str, Any]) -> None:
        if (least := args.get("min_return")) is not None and least > (high := returns.max()):
            raise ConfigError(
                f"alg.args.min_return is {least:g}, but the highest return of the log is {high:g}; lower it"
            )

    def select(self, log: ConversationLog) -> np.ndarray:
        if self.min_return is not None:
            FilteredBC.check_returns(log.returns, {"min_return": self.min_return})
            kept = np.flatnonzero(log.returns >= self.min_return)
            if len(kept) == len(log):
                _logger.warning(
                    "alg.args.min_return: %g leaves out no conversation; so does alg.id: bc", self.min_return
                )
            return kept
        assert self.top_share is not None
        n = share_of(len(log), self.top_share)
        if not n:
            raise ConfigError(f"alg.args.top_share: {self.top_share:g} of {len(log)} conversations is none; raise it")
        return np.sort(np.argsort(-log.returns, kind="stable")[:n])


class DecisionTransformer(BC):
    """Imitation after a text that says the return (Decision Transformer; Chen et al. 2021, arXiv 2106.01345).

    Each conversation begins with its return, such as ``return -2``: as an utterance or system message of a dialogue, or
    as the first line of a plain prompt. To act, the policy reads ``target_return`` instead. The result is an ordinary
    language model.

    Args:
        args: Arguments of :class:`BC`.
        target_return: Return that evaluations, chats and prompts from files ask for, within the range of the log.
        decimals: Decimals of returns in the text.
        kwargs: Keyword arguments of :class:`BC`.
    """

    needs_rewards = True
    reads_returns = True

    def __init__(
        self, *args: Any, target_return: float = 0.0, decimals: Annotated[int, Field(ge=0, le=6)] = 0, **kwargs: Any
    ) -> None:
        self.target_return, self.decimals = target_return, decimals
        super().__init__(*args, **kwargs)

    @classmethod
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        super().check_arguments(args)
        target, decimals = args.get("target_return", 0.0), args.get("decimals", 0)
        if not math.isfinite(target) or round(target, decimals) != target:
            raise ConfigError(
                f"alg.args.target_return is {target:g}, which cannot be written with alg.args.decimals: {decimals}; "
                f"raise decimals, or round it"
            )

    @classmethod
    def check_returns(cls, returns: np.ndarray, args: Mapping[str, Any]) -> None:
        target, decimals = args["target_return"], args["decimals"]
        low, high = (round(float(value), decimals) for value in (returns.min(), returns.max()))
        if not low <= target <= high:
            raise ConfigError(
                f"alg.args.target_return is {target:g}, but the returns of the log are between {low:g} and {high:g}, "
                f"and the policy learns nothing about others; choose one of these, such as {high:g}"
            )
        if low == high:
            raise ConfigError(
                f"all returns of the log are {low:g} with alg.args.decimals: {decimals}, so they say nothing; raise "
                f"decimals"
            )
