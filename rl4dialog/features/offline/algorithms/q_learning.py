"""Values of tokens or replies from logged conversations: what ILQL, CQL, MC returns, psi-learning, AWAC, CHAI share."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from rl4dialog.core.arguments import Count, Fraction, NonNegative, Positive
from rl4dialog.features.offline.algorithms.base import OfflineAlgorithm, weighted_means
from rl4dialog.features.offline.losses import (
    advantage_weights,
    conservative_penalty,
    expectile_loss,
    next_states,
    q_loss,
    td_targets,
)
from rl4dialog.functional.advantages import Turns
from rl4dialog.functional.log_probs import token_log_probs
from rl4dialog.functional.replies import Replies


@dataclass
class States:
    """The n actions of a minibatch, tokens or whole turns of the agent, and the states before them."""

    policy: Any
    batch: Replies  # the conversations
    turns: Turns | None  # None if actions are tokens
    rewards: Tensor  # of the actions, of a turn the sum of its tokens'; shape (n,), like all down to the values
    discounts: Tensor  # of the step after each
    returns: Tensor  # as logged, from each on
    weights: Tensor  # 1, or 0 for the state after a conversation that was cut, before which there is no action
    episodes: Tensor  # number of the conversation of each
    values: Tensor  # V(s) of the trained values
    policy_hidden: Any  # hidden states of the language model
    value_hidden: Any  # of the trained values
    target_hidden: Any  # of the lagging values

    @classmethod
    def of(cls, policy: Any, batch: Replies, discounts: Tensor) -> States:
        """Read whole conversations with ``rewards``, ``returns``, ``loss_weights``, and the discounts of N tokens."""
        turns = Turns.of(batch) if policy.reranked else None
        rewards, returns, weights = (batch.flat(name) for name in ("rewards", "returns", "loss_weights"))
        episodes = torch.as_tensor(batch.token_episodes(), device=discounts.device)
        if turns is not None:
            rewards, discounts = turns.sums(rewards), discounts[turns.last]
            returns, weights, episodes = (each[turns.first] for each in (returns, weights, episodes))
        policy_hidden = policy.policy_hidden(batch)
        value_hidden = policy.value_hidden(batch, policy_hidden)
        target_hidden = policy.target_hidden(batch, value_hidden)
        numbers = rewards, discounts, returns, weights, episodes, policy.state_v(policy.heads, value_hidden)
        return cls(policy, batch, turns, *numbers, policy_hidden, value_hidden, target_hidden)

    @cached_property
    def q(self) -> Tensor:
        """Trained values of the logged actions by each of the J heads. Shape (J, n)."""
        return self.policy.action_q(self.policy.heads, self.value_hidden, self.batch)

    @cached_property
    def target_q(self) -> Tensor:
        """Lagging estimates of the logged actions. Shape (n,)."""
        return self.policy.target_q(self.target_hidden, self.batch)

    def imitation_loss(self) -> Tensor:
        """-log pi_beta(a|s) of the N logged tokens. Shape (N,)."""
        hidden = self.policy_hidden if self.turns is None else self.policy_hidden.tokens
        return -token_log_probs(self.policy.model_logits(hidden), self.batch.flat("response_ids"))

    def td_targets(self, values: Tensor, rewards: Tensor | None = None) -> Tensor:
        """R + gamma times the value of the next state, given the ``values`` of all; 0 after an episode. Shape (n,)."""
        rewards = self.rewards if rewards is None else rewards
        return td_targets(rewards, self.discounts, next_states(values, self.episodes))


class QLearning(OfflineAlgorithm):
    """Values Q(s, a) and V(s), beside imitation of the log. Subclasses define the targets.

    Actions are tokens, or whole turns with a policy that reranks replies. Loss: ``policy_weight`` L_pi + ``v_weight``
    L_V + sum_j L_Qj + ``cql_weight`` sum_j L_CQLj, each a mean over the actions of a minibatch, except that L_pi is
    always one over tokens; see ``docs/offline.md``.

    Args:
        policy_weight: Weight of the imitation of the log by the language model.
        v_weight: Weight of the loss of V.
        cql_weight: Weight of the conservative penalty, which lowers the values of actions that are not in the log.
        cql_temperature: Temperature of the penalty.
        huber_delta: Limit of Huber's loss for Q; ``null`` is the squared error.
        polyak_rate: Share of the trained values in the lagging copy that each optimizer step adds.
        hard_update_every: Number of optimizer steps after which the lagging copy becomes the trained values, too.
    """

    has_values = True
    samples_penalty = False  # whether the conservative penalty is estimated by samples, not a sum over all actions

    def __init__(
        self,
        *args: Any,
        policy_weight: NonNegative = 1.0,
        v_weight: NonNegative = 1.0,
        cql_weight: NonNegative = 0.0,
        cql_temperature: Positive = 1.0,
        huber_delta: Positive | None = None,
        polyak_rate: Fraction = 0.005,
        hard_update_every: Count | None = None,
        **kwargs: Any,
    ) -> None:
        self.policy_weight, self.v_weight = policy_weight, v_weight
        self.cql_weight, self.cql_temperature, self.huber_delta = cql_weight, cql_temperature, huber_delta
        self.polyak_rate, self.hard_update_every = polyak_rate, hard_update_every
        super().__init__(*args, **kwargs)

    def _means(self, batch: Replies, n_tokens: float, n_turns: float) -> dict[str, Tensor]:
        if not self.per_turn:
            return super()._means(batch, n_tokens, n_turns)
        states = States.of(self.policy, batch, self.discounts(batch))
        means = weighted_means(self._value_terms(states), states.weights, n_turns)
        imitation = weighted_means(self._imitation(states), batch.flat("loss_weights"), n_tokens)
        return self._with_loss({**means, **imitation})

    def _terms(self, batch: Replies) -> dict[str, Tensor]:
        states = States.of(self.policy, batch, self.discounts(batch))
        return self._with_loss({**self._value_terms(states), **self._imitation(states)})

    def _q_and_penalty(self, states: States) -> tuple[Tensor, dict[str, Tensor]]:
        """Trained values of n actions by J heads, shape (J, n), and the conservative penalty, if any, shape (n,)."""
        if not self.cql_weight or self.samples_penalty:
            return states.q, {}
        # L_CQL = log sum_a exp Q(s, a) - Q(s, a_log): values of actions that are not in the log go down. The values of
        # all actions, shape (J, N, V), are needed anyway, so those of the logged ones are picked from them.
        policy, ids = states.policy, states.batch.flat("response_ids")
        q_all = policy.only_tokens(policy.heads.q_all(states.value_hidden))
        q = q_all.gather(-1, ids.expand(len(q_all), -1).unsqueeze(-1)).squeeze(-1)
        penalties = [conservative_penalty(all_, one, self.cql_temperature) for all_, one in zip(q_all, q, strict=True)]
        return q, {"cql_loss": torch.stack(penalties).sum(dim=0)}

    def _value_terms(self, states: States) -> dict[str, Tensor]:
        """Losses of Q and V of n actions, and numbers to log, each (n,)."""
        q, terms = self._q_and_penalty(states)
        targets = self._q_targets(states).detach()
        terms["q_loss"] = torch.stack([q_loss(one, targets, self.huber_delta) for one in q]).sum(dim=0)
        estimate = q.detach().amin(dim=0)
        logged = {"q_mean": estimate, "target_q": targets, "td_error": (estimate - targets).abs()}
        if self.has_values:
            terms["v_loss"] = self._v_loss(states)
            values = states.values.detach()
            advantages = states.target_q - values
            logged |= {"v_mean": values, "advantage_mean": advantages, "advantage_abs": advantages.abs()}
        return {**terms, **logged}

    def _imitation(self, states: States) -> dict[str, Tensor]:
        """The loss of the language model, if it is trained, -log pi_beta(a|s). Shape (N,)."""
        return {"policy_loss": states.imitation_loss()} if self.policy.trains_prior and self.policy_weight else {}

    def _with_loss(self, terms: dict[str, Tensor]) -> dict[str, Tensor]:
        """Add the weighted sum of the losses."""
        weights = {"cql_loss": self.cql_weight, "v_loss": self.v_weight, "policy_loss": self.policy_weight}
        loss = terms["q_loss"]
        for name, weight in weights.items():
            if name in terms:
                loss = loss + weight * terms[name]
        return {**terms, "loss": loss}

    @abstractmethod
    def _q_targets(self, states: States) -> Tensor:
        """Targets of Q. Shape (n,)."""

    def _v_loss(self, states: States) -> Tensor:
        """Loss of V: half of the squared error of the estimates Q, which makes V their mean. Shape (n,)."""
        return expectile_loss(states.target_q - states.values, 0.5)

    def _after_step(self) -> None:
        policy: Any = self.policy
        is_hard = self.hard_update_every is not None and (self._n_updates + 1) % self.hard_update_every == 0
        policy.update_targets(1.0 if is_hard else self.polyak_rate)


class ILQL(QLearning):
    """Implicit language Q-learning (Snell et al. 2022, arXiv 2206.11871).

    V(s) is an expectile of Q(s, a) over the logged actions, which approaches the best of them, and the target of Q is
    r + gamma V(s'). No action outside of the log is ever evaluated. Actions are tokens, or whole replies with
    ``value_reranked_causal_lm_policy``.

    Args:
        tau: Expectile: 0.5 is the value of the behaviour in the log, and near 1 that of its best actions.
        imitation: Weights of the tokens that the language model imitates, by their advantage A = min_j Q_j - V:
            ``all`` 1, ``exp`` exp(``imitation_beta`` A), ``sign`` ``imitation_beta`` if A > 0, else the rest to 1.
        imitation_beta: A number per unit of reward, or with ``sign`` a share of at most 1.
        max_log_weight: Largest exponent with ``exp``; ``null`` for none.
        value_min: Smallest value that V learns from, and that advantages have; the same for ``value_max``.
        value_max: Largest one.
    """

    policy_kinds = ("guided", "reranked")

    def __init__(
        self,
        *args: Any,
        tau: Annotated[float, Field(gt=0, lt=1)] = 0.7,
        imitation: Literal["all", "exp", "sign"] = "all",
        imitation_beta: NonNegative = 1.0,
        max_log_weight: Positive | None = None,
        value_min: float | None = None,
        value_max: float | None = None,
        **kwargs: Any,
    ) -> None:
        self.tau, self.imitation, self.imitation_beta = tau, imitation, imitation_beta
        self.max_log_weight = math.inf if max_log_weight is None else max_log_weight
        self.limits = -math.inf if value_min is None else value_min, math.inf if value_max is None else value_max
        super().__init__(*args, **kwargs)

    def _lagging(self, states: States) -> Tensor:
        """Lagging estimates of the logged actions, within the limits. Shape (n,)."""
        return states.target_q.clamp(*self.limits)

    def _imitation(self, states: States) -> dict[str, Tensor]:
        terms = super()._imitation(states)
        if not terms or self.imitation == "all":
            return terms
        advantages = self._lagging(states) - states.values.detach()
        if self.imitation == "exp":
            weights = advantage_weights(self.imitation_beta * advantages, 1.0, self.max_log_weight)
        else:
            weights = (advantages > 0) * (2 * self.imitation_beta - 1) + 1 - self.imitation_beta
        return {"policy_loss": weights * terms["policy_loss"], "weight_mean": weights}

    def _q_targets(self, states: States) -> Tensor:
        # V(s') stands for the best logged action there, so no maximum over actions is needed.
        return states.td_targets(states.values)

    def _v_loss(self, states: States) -> Tensor:
        # |tau - 1(u < 0)| u^2 with u = min_j Q_j(s, a) - V(s) of the lagging heads.
        return expectile_loss(self._lagging(states) - states.values, self.tau)


class CQL(QLearning):
    """Conservative Q-learning (Kumar et al. 2020, arXiv 2006.04779) over tokens.

    With ``value_reranked_causal_lm_policy``, actions are whole replies. They cannot all be compared, so this needs
    ``cql_weight: 0`` and ``backup: data``.

    Args:
        cql_weight: Weight of the conservative penalty.
        backup: Value of the next state: the highest of all tokens (``max``), or that of the next logged token
            (``data``, which is SARSA).
    """

    policy_kinds = ("guided", "reranked")

    def __init__(
        self, *args: Any, cql_weight: NonNegative = 1.0, backup: Literal["max", "data"] = "max", **kwargs: Any
    ) -> None:
        self.backup = backup
        super().__init__(*args, cql_weight=cql_weight, **kwargs)

    def _q_targets(self, states: States) -> Tensor:
        if self.backup == "max":  # max_a' Q(s', a') of the lagging heads over the vocabulary
            return states.td_targets(states.policy.target_q_all(states.target_hidden).amax(dim=-1))
        # There is no action in the state after a conversation that was cut, which has only V.
        return states.td_targets(states.target_q.where(states.weights > 0, states.values.detach()))
