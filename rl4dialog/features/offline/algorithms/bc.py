"""Behaviour cloning: imitation of all conversations, or of the best ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rl4dialog.core.arguments import Positive
from rl4dialog.core.errors import ConfigError
from rl4dialog.data.splits import share_of
from rl4dialog.features.offline.algorithms.base import OfflineAlgorithm
from rl4dialog.features.offline.algorithms.q_learning import QLearning, States
from rl4dialog.features.offline.conversation_log import ConversationLog
from rl4dialog.features.offline.losses import advantage_weights, expectile_loss
from rl4dialog.functional.replies import Replies

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
        top_share: Share of conversations to keep, those with the highest returns; of equal ones, the first.
        min_return: Lowest return to keep, instead of ``top_share``.
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
    def check_returns(cls, returns: np.ndarray, args: Mapping[str, Any]) -> None:
        if (least := args.get("min_return")) is not None and least > (high := returns.max()):
            problem = f"{least:g}, but the highest return of the log is {high:g}"
            raise ConfigError(f"alg.args.min_return is {problem}; lower it")

    def select(self, log: ConversationLog) -> np.ndarray:
        if self.min_return is None:
            assert self.top_share is not None
            if n := share_of(len(log), self.top_share):
                return np.sort(np.argsort(-log.returns, kind="stable")[:n])
            raise ConfigError(f"alg.args.top_share: {self.top_share:g} of {len(log)} conversations is none; raise it")
        FilteredBC.check_returns(log.returns, {"min_return": self.min_return})
        kept = np.flatnonzero(log.returns >= self.min_return)
        if len(kept) == len(log):
            _logger.warning("alg.args.min_return: %g leaves out no conversation; so does alg.id: bc", self.min_return)
        return kept


class DecisionTransformer(BC):
    """Imitation after a text that says the return (Decision Transformer; Chen et al. 2021, arXiv 2106.01345).

    Each conversation begins with its return, such as ``return -2``: as an utterance or system message of a dialogue, or
    as the first line of a plain prompt. To act, the policy reads ``target_return`` instead. The result is an ordinary
    language model.

    Args:
        target_return: Return that evaluations, chats and prompts from files ask for, within the range of the log.
        decimals: Decimals of returns in the text.
    """

    needs_rewards = True
    reads_returns = True

    def __init__(
        self, *args: Any, target_return: float = 0.0, decimals: Annotated[int, Field(ge=0, le=6)] = 0, **kwargs: Any
    ) -> None:
        self.target_return, self.decimals = target_return, decimals
        super().__init__(*args, **kwargs)

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
            problem = f"all returns of the log are {low:g} with alg.args.decimals: {decimals}, so they say nothing"
            raise ConfigError(f"{problem}; raise decimals")


class AWAC(QLearning):
    """Advantage-weighted actor-critic (Nair et al. 2020, arXiv 2006.09359) over tokens.

    The language model imitates logged tokens with weights exp(A / ``temperature``). Expectations over its tokens are
    exact. The result is an ordinary language model without guidance.

    Args:
        temperature: lambda, in units of reward; the larger, the closer to imitation.
        max_log_weight: Largest exponent, which limits a weight.
    """

    has_values = False

    def __init__(self, *args: Any, temperature: Positive = 1.0, max_log_weight: Positive = 3.0, **kwargs: Any) -> None:
        self.temperature, self.max_log_weight = temperature, max_log_weight
        super().__init__(*args, **kwargs)

    @classmethod
    def policy_arguments(cls) -> dict[str, Any]:
        return {"guidance": {"beta": 0.0}}

    @torch.no_grad()
    def _expected_q(self, states: States) -> Tensor:
        """sum_a pi(a|s) Q(s, a) of the lagging values. Shape (N,)."""
        policy = states.policy
        probabilities = policy.model_logits(states.policy_hidden).softmax(dim=-1)
        return (probabilities * policy.target_q_all(states.target_hidden)).sum(dim=-1)

    def _q_targets(self, states: States) -> Tensor:
        return states.td_targets(self._expected_q(states))

    def _imitation(self, states: States) -> dict[str, Tensor]:
        terms = super()._imitation(states)
        if terms:
            advantages = states.target_q - self._expected_q(states)
            weights = advantage_weights(advantages, self.temperature, self.max_log_weight)
            terms["policy_loss"] = weights * terms["policy_loss"]
            terms |= {"weight_mean": weights, "weight_square": weights.square()}
        return terms

    def _logged(self, means: dict[str, float]) -> dict[str, float]:
        """Add the effective sample size of the weights, as a share of the tokens: E[w]^2 / E[w^2]."""
        if "weight_square" not in means:
            return means
        others = {name: mean for name, mean in means.items() if name != "weight_square"}
        return {**others, "effective_share": means["weight_mean"] ** 2 / means["weight_square"]}


class PsiLearning(QLearning):
    """Psi-learning (Jaques et al. 2017, arXiv 1611.02796): values that contain the prior's log-probabilities.

    The target of Q is r / ``reward_scale`` + log pi_beta(a|s) + gamma logsumexp_a' Q(s', a'). The policy is
    softmax(Q), which is ``guidance: {beta: 1, prior_weight: 0}``.

    Args:
        reward_scale: c, the reward that weighs as much as one nat.
        backup: ``logsumexp``, or ``max`` for KL-regularized Q-learning.
        huber_delta: Limit of Huber's loss for Q; ``null`` is the squared error.
    """

    has_values = values_are_returns = False

    def __init__(
        self,
        *args: Any,
        reward_scale: Positive = 1.0,
        backup: Literal["logsumexp", "max"] = "logsumexp",
        huber_delta: Positive | None = 1.0,
        **kwargs: Any,
    ) -> None:
        self.reward_scale, self.backup = reward_scale, backup
        super().__init__(*args, huber_delta=huber_delta, **kwargs)

    def _q_targets(self, states: States) -> Tensor:
        q = states.policy.target_q_all(states.target_hidden)
        values = q.logsumexp(dim=-1) if self.backup == "logsumexp" else q.amax(dim=-1)
        with torch.no_grad():
            rewards = states.rewards / self.reward_scale - states.imitation_loss()
        return states.td_targets(values, rewards)


class MCReturns(QLearning):
    """Monte-Carlo returns: Q and V of the behaviour in the log, by regression on its returns.

    Guidance by their difference is one step of policy improvement. Actions are tokens, or whole replies with
    ``value_reranked_causal_lm_policy``.
    """

    policy_kinds = ("guided", "reranked")

    def _q_targets(self, states: States) -> Tensor:
        return states.returns

    def _v_loss(self, states: States) -> Tensor:
        return expectile_loss(states.returns - states.values, 0.5)
