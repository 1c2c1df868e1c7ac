"""Values of tokens or replies from logged conversations: what ILQL, CQL, MC returns, psi-learning, AWAC, CHAI share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from rl4dialog.algorithms.offline.base import OfflineAlgorithm, weighted_means
from rl4dialog.algorithms.offline.states import States, TokenStates, TurnStates
from rl4dialog.core.arguments import Fraction, NonNegative, Positive
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.log_probs import token_log_probs
from rl4dialog.functional.losses import conservative_penalty, expectile_loss, q_loss, td_targets
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.lagging_values import LaggingValuesMixin


class QLearning(OfflineAlgorithm):
    """Values Q(s, a) and V(s), beside imitation of the log. Subclasses define the targets.

    Actions are tokens, or whole turns with a policy that reranks replies. Loss: ``policy_weight`` L_pi + ``v_weight``
    L_V + sum_j L_Qj + ``cql_weight`` sum_j L_CQLj, each a mean over the actions of a minibatch, except that L_pi is
    always one over tokens; see ``docs/offline.md``.

    Args:
        args: Arguments of :class:`~rl4dialog.algorithms.offline.base.OfflineAlgorithm`.
        policy_weight: Weight of the imitation of the log by the language model.
        v_weight: Weight of the loss of V.
        cql_weight: Weight of the conservative penalty, which lowers the values of actions that are not in the log.
        cql_temperature: Temperature of the penalty.
        huber_delta: Limit of Huber's loss for Q; ``null`` is the squared error.
        polyak_rate: Share of the trained values in the lagging copy that each optimizer step adds.
        kwargs: Keyword arguments of :class:`~rl4dialog.algorithms.offline.base.OfflineAlgorithm`.
    """

    has_values = True
    samples_penalty = False
    """Whether the conservative penalty is estimated by samples instead of the sum over all actions."""

    def __init__(
        self,
        *args: Any,
        policy_weight: NonNegative = 1.0,
        v_weight: NonNegative = 1.0,
        cql_weight: NonNegative = 0.0,
        cql_temperature: Positive = 1.0,
        huber_delta: Positive | None = None,
        polyak_rate: Fraction = 0.005,
        **kwargs: Any,
    ) -> None:
        self.policy_weight, self.v_weight = policy_weight, v_weight
        self.cql_weight, self.cql_temperature, self.huber_delta = cql_weight, cql_temperature, huber_delta
        self.polyak_rate = polyak_rate
        super().__init__(*args, **kwargs)

    @classmethod
    def check_policy(cls, policy: Any, given: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        super().check_policy(policy, given, args)
        if "v_weight" in given and not cls.has_values:
            raise ConfigError("alg.args.v_weight has no effect, because this algorithm learns no V; remove it")
        if "cql_temperature" in given and not args["cql_weight"]:
            raise ConfigError("alg.args.cql_temperature has no effect without alg.args.cql_weight")
        if policy.reranked and args["cql_weight"] and not cls.samples_penalty:
            raise ConfigError(
                "alg.args.cql_weight: the penalty is a sum over all actions, which are too many if they are whole "
                "replies; set it to 0, or use alg.id: chai"
            )

    def _means(self, batch: Replies, n_tokens: float, n_turns: float) -> dict[str, Tensor]:
        if not self.per_turn:
            return super()._means(batch, n_tokens, n_turns)
        states = self._states(batch)
        q = states.policy.turn_q(states.policy.heads, states.value_hidden)
        means = weighted_means(self._value_terms(states, q), states.weights, n_turns)
        if self.guided_policy.trains_prior and self.policy_weight:
            logits = states.policy.model_logits(states.policy_hidden.tokens)
            imitation = {"policy_loss": -token_log_probs(logits, batch.flat("response_ids"))}
            means |= weighted_means(imitation, batch.flat("loss_weights"), n_tokens)
        return self._with_loss(means)

    def _terms(self, batch: Replies) -> dict[str, Tensor]:
        states = self._states(batch)
        heads, penalty = states.policy.heads, {}
        if self.cql_weight:
            # L_CQL = log sum_a exp Q(s, a) - Q(s, a_log): values of actions that are not in the log go down. The values
            # of all actions, shape (J, N, V), are needed anyway, so those of the logged ones are picked from them.
            q_all = states.policy.only_tokens(heads.q_all(states.value_hidden))
            q = q_all.gather(-1, states.ids.expand(len(q_all), -1).unsqueeze(-1)).squeeze(-1)
            penalties = [
                conservative_penalty(all_, one, self.cql_temperature) for all_, one in zip(q_all, q, strict=True)
            ]
            penalty["cql_loss"] = torch.stack(penalties).sum(dim=0)
        else:
            q = heads.q_at(states.value_hidden, states.ids)
        terms = {**penalty, **self._value_terms(states, q)}
        if self.guided_policy.trains_prior and self.policy_weight:
            terms["policy_loss"] = self._policy_loss(states)
        return self._with_loss(terms)

    def _states(self, batch: Replies) -> Any:
        """The actions of a batch, and the states before them: ``TokenStates`` or ``TurnStates``."""
        kind: Any = TurnStates if self.per_turn else TokenStates
        return kind.of(self.policy, batch, self.discounts(batch))

    def _value_terms(self, states: Any, q: Tensor) -> dict[str, Tensor]:
        """Losses of Q and V of n actions, and numbers to log, each (n,), from trained values of J heads (J, n)."""
        targets = self._q_targets(states).detach()
        terms = {"q_loss": torch.stack([q_loss(one, targets, self.huber_delta) for one in q]).sum(dim=0)}
        estimate = q.detach().amin(dim=0)
        logged = {"q_mean": estimate, "target_q": targets, "td_error": (estimate - targets).abs()}
        if self.has_values:
            terms["v_loss"] = self._v_loss(states)
            values = states.values.detach()
            advantages = states.target_q - values
            logged |= {"v_mean": values, "advantage_mean": advantages, "advantage_abs": advantages.abs()}
        return {**terms, **logged}

    def _with_loss(self, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add the weighted sum of the losses."""
        weights = {"cql_loss": self.cql_weight, "v_loss": self.v_weight, "policy_loss": self.policy_weight}
        loss = terms["q_loss"]
        for name, weight in weights.items():
            if name in terms:
                loss = loss + weight * terms[name]
        return {**terms, "loss": loss}

    @property
    def guided_policy(self) -> LaggingValuesMixin:
        """The policy."""
        return self.policy  # type: ignore[return-value]

    def _q_targets(self, states: Any) -> Tensor:
        """Targets of Q. Shape (n,)."""
        raise NotImplementedError

    def _v_loss(self, states: States) -> Tensor:
        """Loss of V: half of the squared error of the estimates Q, which makes V their mean. Shape (n,)."""
        return expectile_loss(states.target_q - states.values, 0.5)

    def _policy_loss(self, states: TokenStates) -> Tensor:
        """Imitation: -log pi_beta(a|s). Shape (N,)."""
        return -token_log_probs(states.policy.model_logits(states.policy_hidden), states.ids)

    def _after_step(self) -> None:
        self.guided_policy.update_targets(self.polyak_rate)


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
        # r + gamma V(s'): V(s') stands for the best logged action there, so no maximum over actions is needed.
        return td_targets(states.rewards, states.discounts, states.after(states.values))

    def _v_loss(self, states: States) -> Tensor:
        # |tau - 1(u < 0)| u^2 with u = min_j Q_j(s, a) - V(s) of the lagging heads.
        return expectile_loss(states.target_q - states.values, self.tau)


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
            # max_a' Q(s', a') of the lagging heads over the vocabulary. Shape (N,).
            values = states.policy.target_q_all(states.target_hidden).amax(dim=-1)
        return td_targets(states.rewards, states.discounts, states.after(values))
