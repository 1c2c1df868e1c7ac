"""Conservative Q-learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from rl4dialog.algorithms.offline.q_learning import QLearning
from rl4dialog.algorithms.offline.states import TokenStates, TurnStates
from rl4dialog.core.arguments import NonNegative
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.value_losses import td_targets


class CQL(QLearning):
    """Conservative Q-learning (Kumar et al. 2020, arXiv 2006.04779) over tokens.

    With ``value_reranked_causal_lm_policy``, actions are whole replies. They cannot all be compared, so this needs
    ``cql_weight: 0`` and ``backup: data``.

    Args:
        args: Arguments of :class:`~rl4dialog.algorithms.offline.q_learning.QLearning`.
        cql_weight: Weight of the conservative penalty.
        backup: Value of the next state: the highest of all tokens (``max``), or that of the next logged token
            (``data``, which is SARSA).
        kwargs: Keyword arguments of :class:`~rl4dialog.algorithms.offline.q_learning.QLearning`.
    """

    policy_kinds = ("guided", "reranked")

    def __init__(
        self, *args: Any, cql_weight: NonNegative = 1.0, backup: Literal["max", "data"] = "max", **kwargs: Any
    ) -> None:
        self.backup = backup
        super().__init__(*args, cql_weight=cql_weight, **kwargs)

    @classmethod
    def check_policy(cls, policy: Any, given: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        super().check_policy(policy, given, args)
        if policy.reranked and args["backup"] == "max":
            raise ConfigError(
                "alg.args.backup: max is a maximum over all actions, which are too many if they are whole replies; set "
                "it to data, or use alg.id: chai"
            )

    def _q_targets(self, states: TokenStates | TurnStates) -> Tensor:
        if self.backup == "data":
            # There is no action in the state after a conversation that was cut, which has only V.
            values = states.target_q.where(states.weights > 0, states.values.detach())
        else:
            assert isinstance(states, TokenStates)
            values = states.policy.target_q_all(states.target_hidden).amax(dim=-1)
        return td_targets(states.rewards, states.discounts, states.after(values))
