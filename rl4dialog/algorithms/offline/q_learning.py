"""Values of tokens from logged conversations: what ILQL, CQL, Monte-Carlo returns, psi-learning and AWAC share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rl4dialog.algorithms.offline.base import OfflineAlgorithm
from rl4dialog.core.arguments import Fraction, NonNegative, Positive
from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.log_probs import token_log_probs
from rl4dialog.functional.replies import Replies
from rl4dialog.functional.value_losses import conservative_penalty, expectile_loss, next_states, q_loss
from rl4dialog.policies.value_guided import ValueGuidedMixin


@dataclass
class TokenStates:
    """The N agent tokens of a minibatch, and the states before them.

    Attributes:
        batch: The conversations.
        ids: The tokens. Shape (N,).
        rewards: Their rewards. Shape (N,).
        discounts: Discount of the step after each. Shape (N,).
        policy_hidden: Hidden states of the language model. Shape (N, H).
        value_hidden: Hidden states of the trained values. Shape (N, H).
        target_hidden: Hidden states of the lagging values. Shape (N, H).
        values: V(s) of the trained values. Shape (N,).
    """

    batch: Replies
    ids: Tensor
    rewards: Tensor
    discounts: Tensor
    policy_hidden: Tensor
    value_hidden: Tensor
    target_hidden: Tensor
    values: Tensor
    _episodes: Tensor = field(repr=False)

    def after(self, values: Tensor) -> Tensor:
        """Values of the states after the tokens; 0 after the last token of an episode. Shape (N,) -> (N,)."""
        return next_states(values, self._episodes)


class QLearning(OfflineAlgorithm):
    """Values Q(s, a) and V(s) of tokens, beside imitation of the log. Subclasses define the targets.

    Loss: ``policy_weight`` L_pi + ``v_weight`` L_V + sum_j L_Qj + ``cql_weight`` sum_j L_CQLj, each a mean over the
    agent tokens of a minibatch; see ``docs/offline.md``.

    Args:
        args: Arguments of :class:`~rl4dialog.algorithms.offline.base.OfflineAlgorithm`.
        policy_weight: Weight of the imitation of the log by the language model.
        v_weight: Weight of the loss of V.
        cql_weight: Weight of the conservative penalty, which lowers the values of tokens that are not in the log.
        cql_temperature: Temperature of the penalty.
        huber_delta: Limit of Huber's loss for Q; ``null`` is the squared error.
        polyak_rate: Share of the trained values in the lagging copy that each optimizer step adds.
        kwargs: Keyword arguments of :class:`~rl4dialog.algorithms.offline.base.OfflineAlgorithm`.
    """

    has_values = True

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
    def check_arguments(cls, args: Mapping[str, Any]) -> None:
        super().check_arguments(args)
        if "cql_temperature" in args and not args.get("cql_weight"):
            raise ConfigError("alg.args.cql_temperature has no effect without alg.args.cql_weight")

    @property
    def guided_policy(self) -> ValueGuidedMixin:
        """The policy."""
        return self.policy  # type: ignore[return-value]

    def _terms(self, batch: Replies) -> dict[str, Tensor]:
        states = self._states(batch)
        heads = self.guided_policy.heads
        targets = self._q_targets(states).detach()
        terms: dict[str, Tensor] = {}
        if self.cql_weight:
            q_all = heads.q_all(states.value_hidden)
            q = q_all.gather(-1, states.ids.expand(len(q_all), -1).unsqueeze(-1)).squeeze(-1)
            penalties = [
                conservative_penalty(all_, one, self.cql_temperature) for all_, one in zip(q_all, q, strict=True)
            ]
            terms["cql_loss"] = torch.stack(penalties).sum(dim=0)
        else:
            q = heads.q_at(states.value_hidden, states.ids)
        terms["q_loss"] = torch.stack([q_loss(one, targets, self.huber_delta) for one in q]).sum(dim=0)
        loss = terms["q_loss"] + self.cql_weight * terms.get("cql_loss", 0.0)
        if self.has_values:
            terms["v_loss"] = self._v_loss(states)
            loss = loss + self.v_weight * terms["v_loss"]
        if self.guided_policy.trains_prior and self.policy_weight:
            terms["policy_loss"] = self._policy_loss(states)
            loss = loss + self.policy_weight * terms["policy_loss"]
        estimate = q.detach().amin(dim=0)
        logged = {"q_mean": estimate, "target_q": targets, "td_error": (estimate - targets).abs()}
        if self.has_values:
            advantages = self._target_q(states) - states.values.detach()
            logged |= {
                "v_mean": states.values.detach(),
                "advantage_mean": advantages,
                "advantage_abs": advantages.abs(),
            }
        return {**terms, **logged, "loss": loss}

    def _states(self, batch: Replies) -> TokenStates:
        policy = self.guided_policy
        policy_hidden = policy._policy_hidden(batch)
        value_hidden = policy.value_hidden(batch, policy_hidden)
        episodes = torch.as_tensor(batch.token_episodes(), device=batch.prompt_ids.device)
        return TokenStates(
            batch,
            batch.flat("response_ids"),
            batch.flat("rewards"),
            self.discounts(batch),
            policy_hidden,
            value_hidden,
            policy.target_hidden(batch, value_hidden),
            policy.heads(value_hidden),
            episodes,
        )

    def _target_q(self, states: TokenStates) -> Tensor:
        """Lagging estimates of the logged tokens. Shape (N,)."""
        return self.guided_policy.target_q_at(states.target_hidden, states.ids)

    def _q_targets(self, states: TokenStates) -> Tensor:
        """Targets of Q. Shape (N,)."""
        raise NotImplementedError

    def _v_loss(self, states: TokenStates) -> Tensor:
        """Loss of V: half of the squared error of the estimates Q, which makes V their mean. Shape (N,)."""
        return expectile_loss(self._target_q(states) - states.values, 0.5)

    def _policy_loss(self, states: TokenStates) -> Tensor:
        """Imitation: -log pi_beta(a|s). Shape (N,)."""
        return -token_log_probs(self.guided_policy.model_logits(states.policy_hidden), states.ids)

    def _after_step(self) -> None:
        self.guided_policy.update_targets(self.polyak_rate)
