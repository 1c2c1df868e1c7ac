"""CHAI: Q-learning over the replies that a language model proposes."""

from __future__ import annotations

import math
from array import array
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl4dialog.core.arguments import Count, NonNegative
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.seeding import derive_seed
from rl4dialog.features.offline.algorithms.q_learning import QLearning, States
from rl4dialog.features.offline.conversation_log import ConversationLog
from rl4dialog.features.offline.losses import sampled_conservative_penalty
from rl4dialog.features.offline.policies.value_guided import ValueRerankedCausalLMPolicy
from rl4dialog.functional.advantages import Turns
from rl4dialog.functional.distributed import process_index
from rl4dialog.functional.masks import padded
from rl4dialog.functional.replies import Replies

_REPLIES_AT_ONCE = 512


class Candidates(NamedTuple):
    """Token ids of n sampled replies to one state, and their log-probabilities under the sampler's distribution."""

    replies: list[array[int]]  # 32-bit numbers, because all stay in memory
    log_probs: list[float]


def turn_states(replies: Replies, turns: Turns) -> list[list[int]]:
    """Token ids that the agent has read before each turn, from the start of the row. Length U."""
    rows, steps = (place[turns.first].tolist() for place in replies.coordinates)
    prompts = [ids[mask].tolist() for ids, mask in zip(replies.prompt_ids, replies.prompt_mask, strict=True)]
    return [[*prompts[row], *replies.response_ids[row, :step].tolist()] for row, step in zip(rows, steps, strict=True)]


def turn_replies(replies: Replies, turns: Turns) -> list[list[int]]:
    """Token ids of each turn. Length U."""
    return [ids.tolist() for ids in replies.flat("response_ids").split(turns.lengths.tolist())]


def turn_numbers(replies: Replies, turns: Turns) -> list[tuple[int, int]]:
    """Number of each turn's conversation, and its own number in it. Length U."""
    assert replies.episode is not None
    rows = replies.coordinates[0][turns.first]
    numbers = replies.flat("turn")[turns.first]
    return list(zip(replies.episode[rows].tolist(), numbers.tolist(), strict=True))


class CandidateCache:
    """``n_candidates`` replies that a frozen language model samples in each state of a log, once, kept in memory.

    States are identified by the numbers of their conversation and turn. Those of a group of conversations are generated
    together, from a seed of the group, so that a resumed run generates the same ones again.
    """

    def __init__(self, log: ConversationLog, groups: np.ndarray, n_candidates: int, seed: int) -> None:
        self._log, self._groups, self._n, self._seed = log, groups, n_candidates, seed
        self._found: dict[tuple[int, int], Candidates] = {}
        self._generated: set[int] = set()

    def __getitem__(self, state: tuple[int, int]) -> Candidates:
        return self._found[state]

    def fill(self, policy: ValueRerankedCausalLMPolicy, conversations: np.ndarray) -> None:
        """Generate the candidates of all states of some conversations, unless they are known."""
        for group in np.unique(self._groups[conversations]).tolist():
            if group not in self._generated:
                self._generated.add(group)
                devices = [policy.device] if policy.device.type == "cuda" else []
                with torch.random.fork_rng(devices=devices):
                    torch.manual_seed(derive_seed(self._seed, "candidates", group))
                    self._generate(policy, np.flatnonzero(self._groups == group))

    def _generate(self, policy: ValueRerankedCausalLMPolicy, conversations: np.ndarray) -> None:
        batch = self._log.replies(conversations)
        turns = Turns.of(batch)
        states, numbers = turn_states(batch, turns), turn_numbers(batch, turns)
        # Prompts of similar length share a batch, to reduce padding.
        order = sorted(range(len(states)), key=lambda i: len(states[i]))
        size = max(1, _REPLIES_AT_ONCE // self._n)
        for part in (order[start : start + size] for start in range(0, len(order), size)):
            prompts = padded([states[i] for i in part], left=True)
            ids, mask = (each.repeat_interleave(self._n, dim=0).to(policy.device) for each in prompts)
            sampled = policy.sample({"prompt_ids": ids, "prompt_mask": mask})
            log_probs = sampled.sampler_log_probs if sampled.sampler_log_probs is not None else sampled.log_probs
            assert log_probs is not None
            sums = (log_probs * sampled.response_mask).sum(dim=1).tolist()
            replies = [array("i", row.tolist()) for row in sampled.per_row("response_ids")]
            for k, i in enumerate(part):
                own = slice(k * self._n, (k + 1) * self._n)
                self._found[numbers[i]] = Candidates(replies[own], sums[own])


class LoggedReplies:
    """The replies of some conversations of a log, to be drawn uniformly."""

    def __init__(self, log: ConversationLog, conversations: np.ndarray) -> None:
        self._log, self._conversations = log, conversations
        self._ends = np.cumsum(log.n_replies[conversations], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def draw(self, n: int, random: np.random.Generator) -> list[list[int]]:
        """Draw token ids of n replies, with replacement; each has the probability 1 / ``len(self)``."""
        drawn = random.integers(len(self), size=n)
        places = np.searchsorted(self._ends, drawn, side="right")
        turns_from_end = self._ends[places] - drawn
        conversations = self._conversations[places]
        batch = self._log.replies(np.unique(conversations))
        turns = Turns.of(batch)
        found = dict(zip(turn_numbers(batch, turns), turn_replies(batch, turns), strict=True))
        n_turns = self._log.n_replies[conversations]
        wanted = zip(conversations.tolist(), (n_turns - turns_from_end).tolist(), strict=True)
        return [found[conversation, turn] for conversation, turn in wanted]


class CHAI(QLearning):
    """CHAI (Verma et al. 2022, arXiv 2204.08426): conservative Q-learning over whole replies.

    The language model is not trained. In each state of the log it proposes ``n_candidates`` replies, once. The target
    of Q is R + gamma max_k Q(s', a_k), and the policy answers with the best of several samples by Q.

    The conservative penalty compares the logged reply with the candidates and as many replies from anywhere in the log,
    each weighted by the inverse of its probability; see
    :func:`~rl4dialog.features.offline.losses.sampled_conservative_penalty`.

    Args:
        args: Arguments of :class:`~rl4dialog.features.offline.algorithms.q_learning.QLearning`, except
            ``policy_weight`` and ``v_weight``.
        n_candidates: Replies per state. They are kept in memory.
        cql_weight: Weight of the conservative penalty.
    """

    policy_kinds = ("reranked",)
    has_values = False
    samples_penalty = True

    def __init__(self, *args: Any, n_candidates: Count = 5, cql_weight: NonNegative = 1.0, **kwargs: Any) -> None:
        self.n_candidates = n_candidates
        super().__init__(*args, cql_weight=cql_weight, **kwargs)
        if not self.policy.settings.do_sample:  # type: ignore[union-attr]
            problem = "do_sample is false, so all candidates would be the same"
            raise ConfigError(f"alg.policy.args.generation_kwargs.{problem}; set it to true")
        groups = np.zeros(len(self.log), dtype=np.int64)
        groups[self.kept] = self.sampler.first_minibatches()
        self._candidates = CandidateCache(self.log, groups, n_candidates, self.seed or 0)
        self._log_replies = LoggedReplies(self.log, self.kept)
        self._random: dict[tuple[int, int], list[list[int]]] = {}

    @classmethod
    def policy_arguments(cls) -> dict[str, Any]:
        return {"train_prior": False}

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
    def _q_targets(self, states: States) -> Tensor:
        best = torch.zeros_like(states.values)
        # No action leads to the first state of a conversation.
        is_later = torch.nn.functional.pad(states.episodes[1:] == states.episodes[:-1], (1, 0))
        if is_later.any():
            _, replies = self._others(states, is_later, with_random=False)
            values = states.policy.target_q(states.policy.target_hidden(replies), replies)
            best[is_later] = values.view(-1, self.n_candidates).amax(dim=1)
        return states.td_targets(best)

    def _value_terms(self, states: States) -> dict[str, Tensor]:
        terms = super()._value_terms(states)
        if self.cql_weight:
            is_logged = states.weights > 0
            penalties = torch.zeros_like(terms["q_loss"]).masked_scatter(is_logged, self._penalties(states, is_logged))
            terms["cql_loss"] = penalties
        return terms

    def _penalties(self, states: States, is_logged: Tensor) -> Tensor:
        """Conservative penalties of the U' logged turns, summed over heads. Shape (U',)."""
        policy, q, n = states.policy, states.q, self.n_candidates
        log_probs, replies = self._others(states, is_logged, with_random=True)
        others = policy.action_q(policy.heads, policy.value_hidden(replies), replies).view(len(q), -1, 2 * n)
        log_u = torch.full_like(log_probs, -math.log(len(self._log_replies)))
        penalties = [
            sampled_conservative_penalty(each[:, :n], log_probs, each[:, n:], log_u, logged)
            for each, logged in zip(others / self.cql_temperature, q[:, is_logged] / self.cql_temperature, strict=True)
        ]
        return torch.stack(penalties).sum(dim=0)

    def _others(self, states: States, chosen: Tensor, with_random: bool) -> tuple[Tensor, Replies]:
        """Log-probabilities (U', n) of n candidates, and all other replies in the ``chosen`` states (U',) as rows."""
        assert states.turns is not None
        before, numbers = turn_states(states.batch, states.turns), turn_numbers(states.batch, states.turns)
        log_probs, prompts, replies = [], [], []
        for i in chosen.nonzero().squeeze(1).tolist():
            candidates = self._candidates[numbers[i]]
            others = [*candidates.replies, *(self._random[numbers[i]] if with_random else ())]
            log_probs.append(candidates.log_probs)
            prompts += [before[i]] * len(others)
            replies += others
        device = states.values.device
        return torch.tensor(log_probs, device=device), Replies.from_ids(prompts, replies, device)
