"""Conservative Q-learning."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from rl4dialog.algorithms.offline.q_learning import QLearning, TokenStates
from rl4dialog.core.arguments import NonNegative
from rl4dialog.functional.value_losses import td_targets


class CQL(QLearning):
    """Conservative Q-learning (Kumar et al. 2020, arXiv 2006.04779) over tokens.

    Args:
        args: Arguments of :class:`~rl4dialog.algorithms.offline.q_learning.QLearning`.
        cql_weight: Weight of the conservative penalty.
        backup: Value of the next state: the highest of all tokens (``max``), or that of the next logged token
            (``data``, which is SARSA).
        kwargs: Keyword arguments of :class:`~rl4dialog.algorithms.offline.q_learning.QLearning`.
    """

    def __init__(
        self, *args: Any, cql_weight: NonNegative = 1.0, backup: Literal["max", "data"] = "max", **kwargs: Any
    ) -> None:
        self.backup = backup
        super().__init__(*args, cql_weight=cql_weight, **kwargs)

    def _q_targets(self, states: TokenStates) -> Tensor:
        if self.backup == "data":
            values = self._target_q(states)
            # The token after the end of a cut conversation is not logged, so its state has only V.
            values = values.where(states.batch.flat("loss_weights") > 0, states.values.detach())
        else:
            values = self.guided_policy.target_q_all(states.target_hidden).amax(dim=-1)
        return td_targets(states.rewards, states.discounts, states.after(values))
