"""Monte-Carlo returns."""

from __future__ import annotations

from torch import Tensor

from rl4dialog.algorithms.offline.q_learning import QLearning
from rl4dialog.algorithms.offline.states import States
from rl4dialog.functional.value_losses import expectile_loss


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
