"""The replies of a rollout, collected to whole conversations and evaluated: values and reference log-probabilities."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from rl4dialog.functional.replies import Replies, joined_turns
from rl4dialog.functional.rounding import is_constant
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
    """

    def __init__(self, policy: LMActorCriticPolicy, join: bool) -> None:
        self._policy, self._join, self._at_once = policy, join, policy.lockstep or not join
        self._batches: list[Replies] = []
        self._starts: list[int] = []  # number of the first reply of each batch
        self._ended: list[EndedConversation] = []  # whose rows are not built yet
        self._rows: list[Replies] = []

    def add(self, replies: Replies | None) -> Replies | None:
        """Append replies, and evaluate them, or the conversations that have ended; returns them in main memory."""
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


ConstantGroups = Literal["keep", "drop", "resample"]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GroupSettings:
    """How conversations are grouped.

    Attributes:
        size: Number of consecutive environments that answer the same prompts.
        constant: Groups with equal task rewards: ``keep`` them, ``drop`` them, or ``resample``: do not count their
            tokens either, so that further groups are collected instead (dynamic sampling of DAPO; Yu et al. 2025, arXiv
            2503.14476).
        max_resampling: ``resample`` ends when the constant groups hold this many times the tokens of an iteration.
    """

    size: int = 1
    constant: ConstantGroups = "keep"
    max_resampling: int = 3


class Groups:
    """Decides which conversations of a rollout are trained on.

    Attributes:
        n_tokens: Number of agent tokens that count towards an iteration.
        found_constant: For each complete group, whether its rewards are constant up to rounding, or fewer than two.
    """

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._open: dict[int, list[EndedConversation | None]] = defaultdict(list)
        self._constant: list[EndedConversation] = []
        self._has_chosen = False
        self.n_tokens = 0
        self.found_constant: list[bool] = []

    def add(self, group: int, conversation: EndedConversation | None) -> list[EndedConversation]:
        """Add a conversation that has ended, or ``None`` for one that failed; returns those to train on.

        This is the conversation itself or, if constant groups are left out, all of a complete group.
        """
        self._open[group].append(conversation)
        chosen = [conversation] if conversation is not None and self._settings.constant == "keep" else []
        if len(self._open[group]) == self._settings.size:
            ended = [member for member in self._open.pop(group) if member is not None]
            self.found_constant.append(_is_constant(ended))
            if self._settings.constant != "keep":
                if not self.found_constant[-1]:
                    chosen = ended
                else:
                    self._constant += ended
                    if self._settings.constant == "drop":
                        self.n_tokens += _n_tokens(ended)
        self._has_chosen |= bool(chosen)
        self.n_tokens += _n_tokens(chosen)
        return chosen

    def is_enough(self, n_tokens: int) -> bool:
        """Whether a rollout of this many tokens has enough conversations."""
        if self.n_tokens >= n_tokens:
            return True
        limit = self._settings.max_resampling * n_tokens
        if self._settings.constant == "resample" and _n_tokens(self._constant) >= limit:
            _logger.warning(
                "%d of %d groups had equal rewards: alg.args.max_resampling = %d ends the rollout with %d of %d tokens",
                sum(self.found_constant),
                len(self.found_constant),
                self._settings.max_resampling,
                self.n_tokens,
                n_tokens,
            )
            return True
        return False

    def rest(self) -> list[EndedConversation]:
        """Conversations to train on if all groups of the rollout are constant: all of them, so that there are some."""
        return [] if self._has_chosen else self._constant


def _is_constant(conversations: list[EndedConversation]) -> bool:
    """Whether the rewards of a group are constant up to rounding, or fewer than two."""
    earned = [np.concatenate(each.earned) for each in conversations]
    return is_constant(np.array([each.sum() for each in earned]), np.array([np.abs(each).sum() for each in earned]))


def _n_tokens(conversations: list[EndedConversation]) -> int:
    return sum(each.n_tokens for each in conversations)
