"""Monte-Carlo returns."""

from __future__ import annotations

from torch import Tensor

from rl4dialog.algorithms.offline.q_learning import QLearning, TokenStates
from rl4dialog.functional.value_losses import expectile_loss


class MCReturns(QLearning):
    """Monte-Carlo returns: Q and V of the behaviour in the log, by regression on its returns.

    Guidance by their difference is one step of policy improvement.
    """

    def _q_targets(self, states: TokenStates) -> Tensor:
        return states.batch.flat("returns")

    def _v_loss(self, states: TokenStates) -> Tensor:
        return expectile_loss(states.batch.flat("returns") - states.values, 0.5)
