"""The replies of a rollout, collected to whole conversations and evaluated: values and reference log-probabilities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from rl4dialog.functional.joining import joined_turns
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy


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
        self._ended: list[tuple[int, int, int, float]] = []  # reply, episode, group, last value
        self._earned: list[np.ndarray] = []  # task rewards per token of these replies
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

    def end(self, numbers: list[int], earned: list[np.ndarray], episode: int, group: int, last_value: float) -> None:
        """Note that a conversation has ended, which is to be trained on.

        Args:
            numbers: Its replies, in order.
            earned: Task rewards per token of each of them.
            episode: Number of the conversation.
            group: Number shared by conversations about the same prompt.
            last_value: Value after its last token; 0 unless it is bootstrapped.
        """
        values = [0.0] * (len(numbers) - 1) + [last_value]
        self._earned += earned
        self._ended += [(number, episode, group, value) for number, value in zip(numbers, values, strict=True)]

    def rows(self) -> Replies:
        """All conversations that have ended, in this order, evaluated and in main memory."""
        self._take_ended()
        return Replies.concatenate(self._rows)

    def _take_ended(self) -> None:
        if not self._ended:
            return
        numbers, episode, group, last_value = (torch.tensor(column) for column in zip(*self._ended, strict=True))
        rows = replace(self._chosen(numbers.numpy()), episode=episode, group=group, last_value=last_value)
        rows.task_rewards = rows.scattered(np.concatenate(self._earned))
        self._ended, self._earned = [], []
        if self._join:
            rows = joined_turns(rows)
        if not self._at_once:
            rows = rows.to(self._policy.device)
            evaluate(self._policy, rows)
            rows = rows.to("cpu")
        self._rows.append(rows)

    def _chosen(self, numbers: np.ndarray) -> Replies:
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
