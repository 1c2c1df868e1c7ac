"""Implicit language Q-learning."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from torch import Tensor

from rl4dialog.algorithms.offline.q_learning import QLearning
from rl4dialog.algorithms.offline.states import States
from rl4dialog.functional.value_losses import expectile_loss, td_targets


class ILQL(QLearning):
    """Implicit language Q-learning (Snell et al. 2022, arXiv 2206.11871).

    V(s) is an expectile of Q(s, a) over the logged actions, which approaches the best of them, and the target of Q is
    r + gamma V(s'). No action outside of the log is ever evaluated. Actions are tokens, or whole replies with
    ``value_reranked_causal_lm_policy``.

    Args:
        args: Arguments of :class:`~rl4dialog.algorithms.offline.q_learning.QLearning`.
        tau: Expectile: 0.5 is the value of the behaviour in the log, and near 1 that of its best actions.
        kwargs: Keyword arguments of :class:`~rl4dialog.algorithms.offline.q_learning.QLearning`.
    """

    policy_kinds = ("guided", "reranked")

    def __init__(self, *args: Any, tau: Annotated[float, Field(gt=0, lt=1)] = 0.7, **kwargs: Any) -> None:
        self.tau = tau
        super().__init__(*args, **kwargs)

    def _q_targets(self, states: States) -> Tensor:
        return td_targets(states.rewards, states.discounts, states.after(states.values))

    def _v_loss(self, states: States) -> Tensor:
        return expectile_loss(states.target_q - states.values, self.tau)
