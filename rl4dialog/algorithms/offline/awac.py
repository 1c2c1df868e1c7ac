"""Advantage-weighted actor-critic."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl4dialog.algorithms.offline.q_learning import QLearning
from rl4dialog.algorithms.offline.states import TokenStates
from rl4dialog.core.arguments import Positive
from rl4dialog.functional.replies import Replies
from rl4dialog.functional.value_losses import advantage_weights, td_targets


class AWAC(QLearning):
    """Advantage-weighted actor-critic (Nair et al. 2020, arXiv 2006.09359) over tokens.

    The language model imitates logged tokens with weights exp(A / ``temperature``). Expectations over its tokens are
    exact. The result is an ordinary language model without guidance.

    Args:
        args: Arguments of :class:`~rl4dialog.algorithms.offline.q_learning.QLearning`.
        temperature: lambda, in units of reward; the larger, the closer to imitation.
        max_log_weight: Largest exponent, which limits a weight.
        kwargs: Keyword arguments of :class:`~rl4dialog.algorithms.offline.q_learning.QLearning`.
    """

    has_values = False

    def __init__(self, *args: Any, temperature: Positive = 1.0, max_log_weight: Positive = 3.0, **kwargs: Any) -> None:
        self.temperature, self.max_log_weight = temperature, max_log_weight
        super().__init__(*args, **kwargs)

    @classmethod
    def policy_arguments(cls) -> dict[str, Any]:
        return {"guidance": {"beta": 0.0}}

    @torch.no_grad()
    def _expected_q(self, states: TokenStates) -> Tensor:
        """sum_a pi(a|s) Q(s, a) of the lagging values. Shape (N,)."""
        policy = states.policy
        probabilities = policy.model_logits(states.policy_hidden).softmax(dim=-1)
        return (probabilities * policy.target_q_all(states.target_hidden)).sum(dim=-1)

    def _q_targets(self, states: TokenStates) -> Tensor:
        return td_targets(states.rewards, states.discounts, states.after(self._expected_q(states)))

    def _terms(self, batch: Replies) -> dict[str, Tensor]:
        terms = super()._terms(batch)
        if "policy_loss" not in terms:
            return terms
        return {**terms, "weight_mean": self._weights, "weight_square": self._weights.square()}

    def _policy_loss(self, states: TokenStates) -> Tensor:
        advantages = states.target_q - self._expected_q(states)
        self._weights = advantage_weights(advantages, self.temperature, self.max_log_weight)
        return self._weights * super()._policy_loss(states)

    def _logged(self, means: dict[str, float]) -> dict[str, float]:
        """Add the effective sample size of the weights, as a share of the tokens: E[w]^2 / E[w^2]."""
        others = {name: mean for name, mean in means.items() if name != "weight_square"}
        if len(others) == len(means):
            return means
        return {**others, "effective_share": means["weight_mean"] ** 2 / means["weight_square"]}
