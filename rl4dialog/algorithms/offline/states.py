"""Actions of a minibatch whose values are learned, tokens or whole turns, and the states before them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rl4dialog.functional.advantages import Turns
from rl4dialog.functional.losses import next_states
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.value_guided import TurnHidden, ValueGuidedMixin, ValueRerankedCausalLMPolicy


@dataclass
class States:
    """The n actions of a minibatch.

    Attributes:
        rewards: Their rewards. Shape (n,).
        discounts: Discount of the step after each. Shape (n,).
        returns: Logged return from each on. Shape (n,).
        weights: 1, or 0 for the state after a conversation that was cut, before which there is no action. Shape (n,).
        episodes: Number of the conversation of each. Shape (n,).
        values: V(s) of the trained values. Shape (n,).
    """

    rewards: Tensor
    discounts: Tensor
    returns: Tensor
    weights: Tensor
    episodes: Tensor
    values: Tensor

    @property
    def target_q(self) -> Tensor:
        """Lagging estimates of the logged actions. Shape (n,)."""
        raise NotImplementedError

    def after(self, values: Tensor) -> Tensor:
        """Values of the states after the actions; 0 after the last action of an episode. Shape (n,) -> (n,)."""
        return next_states(values, self.episodes)


@dataclass
class TokenStates(States):
    """The N agent tokens of a minibatch.

    Attributes:
        policy: The policy.
        ids: The tokens. Shape (N,).
        policy_hidden: Hidden states of the language model. Shape (N, H).
        value_hidden: Hidden states of the trained values. Shape (N, H).
        target_hidden: Hidden states of the lagging values. Shape (N, H).
    """

    policy: ValueGuidedMixin
    ids: Tensor
    policy_hidden: Tensor
    value_hidden: Tensor
    target_hidden: Tensor

    @classmethod
    def of(cls, policy: ValueGuidedMixin, batch: Replies, discounts: Tensor) -> TokenStates:
        """Read a batch of whole conversations with its ``rewards``, ``returns`` and ``loss_weights``."""
        policy_hidden = policy.policy_hidden(batch)
        value_hidden = policy.value_hidden(batch, policy_hidden)
        return cls(
            batch.flat("rewards"),
            discounts,
            batch.flat("returns"),
            batch.flat("loss_weights"),
            torch.as_tensor(batch.token_episodes(), device=batch.prompt_ids.device),
            policy.heads(value_hidden),
            policy,
            batch.flat("response_ids"),
            policy_hidden,
            value_hidden,
            policy.target_hidden(batch, value_hidden),
        )

    @cached_property
    def target_q(self) -> Tensor:  # type: ignore[override]
        return self.policy.target_q_at(self.target_hidden, self.ids)


@dataclass
class TurnStates(States):
    """The U turns of the agent in a minibatch. A turn's reward is the sum of its tokens'.

    Attributes:
        policy: The policy.
        batch: The conversations.
        turns: The turns.
        policy_hidden: Hidden states of the language model.
        value_hidden: Hidden states of the trained values.
        target_hidden: Hidden states of the lagging values.
    """

    policy: ValueRerankedCausalLMPolicy
    batch: Replies
    turns: Turns
    policy_hidden: TurnHidden
    value_hidden: TurnHidden
    target_hidden: TurnHidden

    @classmethod
    def of(cls, policy: ValueRerankedCausalLMPolicy, batch: Replies, discounts: Tensor) -> TurnStates:
        """Read a batch, as :meth:`TokenStates.of`. Tokens have the discount 1, except the last one of a turn."""
        turns = Turns.of(batch)
        policy_hidden = policy.policy_hidden(batch)
        value_hidden = policy.value_hidden(batch, policy_hidden)
        episodes = torch.as_tensor(batch.token_episodes(), device=batch.prompt_ids.device)
        return cls(
            turns.sums(batch.flat("rewards")),
            discounts[turns.last],
            batch.flat("returns")[turns.first],
            batch.flat("loss_weights")[turns.first],
            episodes[turns.first],
            policy.heads(value_hidden.starts),
            policy,
            batch,
            turns,
            policy_hidden,
            value_hidden,
            policy.target_hidden(batch, value_hidden),
        )

    @cached_property
    def target_q(self) -> Tensor:  # type: ignore[override]
        return self.policy.target_turn_q(self.target_hidden)
