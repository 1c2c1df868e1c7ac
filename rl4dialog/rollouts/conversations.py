"""The replies of a rollout, collected to whole conversations and evaluated: values and reference log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rl4dialog.functional.joining import joined_turns
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy


@dataclass(frozen=True)
class EndedConversation:
    """A conversation that is to be trained on.

    Attributes:
        numbers: Its replies, in order.
        earned: Task rewards per token of each of them.
        cut: Whether each of them was cut at the length limit.
        episode: Number of the conversation.
        group: Number shared by conversations about the same prompt.
        last_value: Value after its last token; 0 unless it is bootstrapped.
    """

    numbers: list[int]
    earned: list[np.ndarray]
    cut: list[bool]
    episode: int
    group: int
    last_value: float

    @property
    def n_tokens(self) -> int:
        """Number of agent tokens."""
        return sum(map(len, self.earned))


class Conversations:
    """Replies in order of their generation, numbered from 0, and the rows of conversations that have ended.

    With ``join``, turns are joined to rows when their conversation has ended, and evaluated then. Otherwise, and in
    lockstep, where all processes must run the same number of passes, each batch of replies is evaluated at once.

    Args:
        policy: Evaluates the replies.
        join: Join the turns of each conversation; see :func:`~rl4dialog.functional.joining.joined_turns`.
    """

    def __init__(self, policy: LMActorCriticPolicy, join: bool) -> None:
        self._policy, self._join, self._at_once = policy, join, policy.lockstep or not join
        self._batches: list[Replies] = []
        self._starts: list[int] = []  # number of the first reply of each batch
        self._ended: list[EndedConversation] = []  # whose rows are not built yet
        self._rows: list[Replies] = []

    def add(self, replies: Replies | None) -> Replies | None:
        """Append a batch of replies, and evaluate them, or the conversations that have ended.

        Returns:
            The replies in main memory.
        """
        if not self._at_once:
            self._take_ended()
        if replies is None:
            return None
        if self._at_once:
            evaluate(self._policy, replies)
        replies = replies.to("cpu")
        self._starts.append(self._starts[-1] + len(self._batches[-1]) if self._batches else 0)
        self._batches.append(replies)
        return replies

    def end(self, conversation: EndedConversation) -> None:
        """Note that a conversation has ended, which is to be trained on."""
        self._ended.append(conversation)

    def rows(self) -> Replies:
        """All conversations that have ended, in this order, evaluated and in main memory."""
        self._take_ended()
        return Replies.concatenate(self._rows)

    def _take_ended(self) -> None:
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        rows = self.replies_of(np.concatenate([each.numbers for each in ended]))
        n_replies = torch.tensor([len(each.numbers) for each in ended])
        rows.episode, rows.group = (
            torch.tensor([getattr(each, name) for each in ended]).repeat_interleave(n_replies)
            for name in ("episode", "group")
        )
        rows.last_value = torch.tensor(
            [value for each in ended for value in [0.0] * (len(each.numbers) - 1) + [each.last_value]]
        )
        earned = [part for each in ended for part in each.earned]
        rows.task_rewards = rows.scattered(np.concatenate(earned))
        cut = np.concatenate([np.asarray(each.cut, dtype=np.float32) for each in ended])
        rows.cut = rows.scattered(np.repeat(cut, [len(part) for part in earned]))
        if self._join:
            rows = joined_turns(rows)
        if not self._at_once:
            rows = rows.to(self._policy.device)
            evaluate(self._policy, rows)
            rows = rows.to("cpu")
        self._rows.append(rows)

    def replies_of(self, numbers: np.ndarray) -> Replies:
        """Replies with these numbers, in this order."""
        batches = np.searchsorted(self._starts, numbers, side="right") - 1
        parts = [
            self._batches[batch][torch.as_tensor(numbers[batches == batch] - self._starts[batch])]
            for batch in np.unique(batches)
        ]
        by_batch = np.argsort(batches, kind="stable")
        return Replies.concatenate(parts)[torch.as_tensor(np.argsort(by_batch))]


@torch.no_grad()
def evaluate(policy: LMActorCriticPolicy, replies: Replies) -> None:
    """Add values and reference log-probabilities."""
    replies.values = replies.computed(policy.predict_sequence_values, policy.lockstep)
    replies.ref_log_probs = replies.computed(policy.reference_log_probs, policy.lockstep)
