"""Psi-learning."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from rl4dialog.algorithms.offline.q_learning import QLearning
from rl4dialog.algorithms.offline.states import TokenStates
from rl4dialog.core.arguments import Positive
from rl4dialog.functional.log_probs import token_log_probs
from rl4dialog.functional.value_losses import td_targets


class PsiLearning(QLearning):
    """Psi-learning (Jaques et al. 2017, arXiv 1611.02796): values that contain the prior's log-probabilities.

    The target of Q is r / ``reward_scale`` + log pi_beta(a|s) + gamma logsumexp_a' Q(s', a'). The policy is
    softmax(Q), which is ``guidance: {beta: 1, prior_weight: 0}``.

    Args:
        args: Arguments of :class:`~rl4dialog.algorithms.offline.q_learning.QLearning`.
        reward_scale: c, the reward that weighs as much as one nat.
        backup: ``logsumexp``, or ``max`` for KL-regularized Q-learning.
        huber_delta: Limit of Huber's loss for Q; ``null`` is the squared error.
        kwargs: Keyword arguments of :class:`~rl4dialog.algorithms.offline.q_learning.QLearning`.
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

    def _q_targets(self, states: TokenStates) -> Tensor:
        q = states.policy.target_q_all(states.target_hidden)
        values = q.logsumexp(dim=-1) if self.backup == "logsumexp" else q.amax(dim=-1)
        with torch.no_grad():
            prior = token_log_probs(states.policy.model_logits(states.policy_hidden), states.ids)
        return td_targets(states.rewards / self.reward_scale + prior, states.discounts, states.after(values))
