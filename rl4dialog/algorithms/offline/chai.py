"""CHAI: Q-learning over the replies that a language model proposes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl4dialog.algorithms.offline.candidates import CandidateCache, LoggedReplies, alternatives
from rl4dialog.algorithms.offline.q_learning import QLearning
from rl4dialog.algorithms.offline.states import TurnStates
from rl4dialog.core.arguments import Count, NonNegative
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.seeding import derive_seed
from rl4dialog.functional.distributed import process_index
from rl4dialog.functional.replies import Replies
from rl4dialog.functional.turns import Turns, turn_numbers, turn_states
from rl4dialog.functional.value_losses import sampled_conservative_penalty, td_targets


class CHAI(QLearning):
    """CHAI (Verma et al. 2022, arXiv 2204.08426): conservative Q-learning over whole replies.

    The language model is not trained. In each state of the log it proposes ``n_candidates`` replies, once. The target
    of Q is R + gamma max_k Q(s', a_k), and the policy answers with the best of several samples by Q.

    The conservative penalty compares the logged reply with the candidates and as many replies from anywhere in the log,
    each weighted by the inverse of its probability; see
    :func:`~rl4dialog.functional.value_losses.sampled_conservative_penalty`.

    Args:
        args: Arguments of :class:`~rl4dialog.algorithms.offline.q_learning.QLearning`, except ``policy_weight`` and
            ``v_weight``.
        n_candidates: Replies per state. They are kept in memory.
        cql_weight: Weight of the conservative penalty.
        kwargs: Keyword arguments of :class:`~rl4dialog.algorithms.offline.q_learning.QLearning`.
    """

    policy_kinds = ("reranked",)
    has_values = False
    samples_penalty = True

    def __init__(self, *args: Any, n_candidates: Count = 5, cql_weight: NonNegative = 1.0, **kwargs: Any) -> None:
        self.n_candidates = n_candidates
        super().__init__(*args, cql_weight=cql_weight, **kwargs)
        if not self.policy.settings.do_sample:  # type: ignore[union-attr]
            raise ConfigError(
                "alg.policy.args.generation_kwargs.do_sample is false, so all candidates would be the same; set it to "
                "true"
            )
        groups = np.zeros(len(self.log), dtype=np.int64)
        groups[self.kept] = self.sampler.first_minibatches()
        self._candidates = CandidateCache(self.log, groups, n_candidates, self.seed or 0)
        self._log_replies = LoggedReplies(self.log, self.kept)
        self._random: dict[tuple[int, int], list[list[int]]] = {}

    @classmethod
    def policy_arguments(cls) -> dict[str, Any]:
        return {"train_prior": False}

    @classmethod
    def check_policy(cls, policy: Any, given: Mapping[str, Any], args: Mapping[str, Any]) -> None:
        super().check_policy(policy, given, args)
        if "policy_weight" in given:
            raise ConfigError("alg.args.policy_weight has no effect, because chai trains no language model; remove it")

    def prepared(self, batch: Replies) -> Replies:
        batch = super().prepared(batch)
        states = turn_numbers(batch, Turns.of(batch))
        conversations = np.unique([conversation for conversation, _ in states])
        self._candidates.fill(self.policy, conversations)  # type: ignore[arg-type]
        if self.cql_weight:
            n = self.n_candidates
            random = np.random.default_rng(derive_seed(self.seed or 0, "random", self._n_updates, process_index()))
            drawn = self._log_replies.draw(len(states) * n, random)
            self._random = {state: drawn[i * n : (i + 1) * n] for i, state in enumerate(states)}
        return batch

    @torch.no_grad()
    def _q_targets(self, states: TurnStates) -> Tensor:
        best = torch.zeros_like(states.values)
        # No action leads to the first state of a conversation.
        is_later = torch.nn.functional.pad(states.episodes[1:] == states.episodes[:-1], (1, 0))
        if is_later.any():
            _, replies = self._others(states, is_later, with_random=False)
            values = states.policy.target_turn_q(states.policy.target_hidden(replies))
            best[is_later] = values.view(-1, self.n_candidates).amax(dim=1)
        return td_targets(states.rewards, states.discounts, states.after(best))

    def _value_terms(self, states: TurnStates, q: Tensor) -> dict[str, Tensor]:
        terms = super()._value_terms(states, q)
        if self.cql_weight:
            is_logged = states.weights > 0
            terms["cql_loss"] = torch.zeros_like(terms["q_loss"]).masked_scatter(
                is_logged, self._penalties(states, q, is_logged)
            )
        return terms

    def _penalties(self, states: TurnStates, q: Tensor, is_logged: Tensor) -> Tensor:
        """Conservative penalties of the U' logged turns, summed over heads. Shape (U',)."""
        policy, n = states.policy, self.n_candidates
        log_probs, replies = self._others(states, is_logged, with_random=True)
        others = policy.turn_q(policy.heads, policy.value_hidden(replies)).view(len(q), -1, 2 * n)
        log_u = torch.full_like(log_probs, -math.log(len(self._log_replies)))
        penalties = [
            sampled_conservative_penalty(each[:, :n], log_probs, each[:, n:], log_u, logged)
            for each, logged in zip(others / self.cql_temperature, q[:, is_logged] / self.cql_temperature, strict=True)
        ]
        return torch.stack(penalties).sum(dim=0)

    def _others(self, states: TurnStates, chosen: Tensor, with_random: bool) -> tuple[Tensor, Replies]:
        """Other replies in some states: n candidates, then n random ones.

        Args:
            states: The states.
            chosen: Which of them. Shape (U,).
            with_random: Whether to include random replies.

        Returns:
            Log-probabilities of the candidates, shape (U', n), and all replies as rows, state by state.
        """
        places = chosen.nonzero().squeeze(1).tolist()
        before = turn_states(states.batch, states.turns)
        numbers = turn_numbers(states.batch, states.turns)
        candidates = [self._candidates[numbers[i]] for i in places]
        said = [
            [*each.replies, *(self._random[numbers[i]] if with_random else ())]
            for each, i in zip(candidates, places, strict=True)
        ]
        device = states.values.device
        log_probs = torch.tensor([each.log_probs for each in candidates], device=device)
        return log_probs, alternatives([before[i] for i in places], said, device)
