"""Replies other than the logged ones, whose values are compared with theirs."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rl4dialog.core.seeding import derive_seed
from rl4dialog.functional.masks import padded
from rl4dialog.functional.replies import Replies
from rl4dialog.functional.turns import Turns, turn_numbers, turn_replies, turn_states
from rl4dialog.policies.value_reranked import ValueRerankedCausalLMPolicy
from rl4dialog.rollouts.conversation_log import ConversationLog

_REPLIES_AT_ONCE = 512


@dataclass(frozen=True)
class Candidates:
    """Sampled replies to one state.

    Attributes:
        replies: Token ids of n replies, as 32-bit numbers, because all stay in memory.
        log_probs: Log-probability of each reply under the distribution that it was drawn from. Length n.
    """

    replies: list[array[int]]
    log_probs: list[float]


class CandidateCache:
    """Replies that a frozen language model samples in the states of a log, generated once and kept in memory.

    States are identified by the numbers of their conversation and turn. Those of a group of conversations are generated
    together, from a seed of the group, so that a resumed run generates the same ones again.

    Args:
        log: The conversations.
        groups: Group of each conversation. Shape (n,).
        n_candidates: Replies per state.
        seed: Random seed.
    """

    def __init__(self, log: ConversationLog, groups: np.ndarray, n_candidates: int, seed: int) -> None:
        self._log, self._groups, self._n, self._seed = log, groups, n_candidates, seed
        self._found: dict[tuple[int, int], Candidates] = {}
        self._generated: set[int] = set()

    def __getitem__(self, state: tuple[int, int]) -> Candidates:
        return self._found[state]

    def fill(self, policy: ValueRerankedCausalLMPolicy, conversations: np.ndarray) -> None:
        """Generate the candidates of all states of conversations, unless they are known.

        Args:
            policy: Has the language model and its sampling settings.
            conversations: Numbers of the conversations. Shape (n,).
        """
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
            ids, mask = (
                each.repeat_interleave(self._n, dim=0).to(policy.device)
                for each in padded([states[i] for i in part], left=True)
            )
            sampled = policy.sample({"prompt_ids": ids, "prompt_mask": mask})
            log_probs = sampled.sampler_log_probs if sampled.sampler_log_probs is not None else sampled.log_probs
            assert log_probs is not None
            sums = (log_probs * sampled.response_mask).sum(dim=1).tolist()
            replies = [array("i", row.tolist()) for row in sampled.per_row("response_ids")]
            for k, i in enumerate(part):
                own = slice(k * self._n, (k + 1) * self._n)
                self._found[numbers[i]] = Candidates(replies[own], sums[own])


class LoggedReplies:
    """The replies of a log, to be drawn uniformly.

    Args:
        log: The conversations.
        conversations: Numbers of those to draw from. Shape (n,).
    """

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


def alternatives(states: list[list[int]], replies: Sequence[Sequence[Sequence[int]]], device: torch.device) -> Replies:
    """Several replies to each state as rows, state by state.

    Args:
        states: Token ids of U states.
        replies: Token ids of n replies to each.
        device: Device of the rows.
    """
    prompts = [state for state, own in zip(states, replies, strict=True) for _ in own]
    return Replies.from_ids(prompts, [ids for own in replies for ids in own], device)
