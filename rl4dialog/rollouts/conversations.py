"""The rows of a rollout: conversations that have ended, evaluated and in groups."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from rl4dialog.functional.replies import Replies, joined_turns
from rl4dialog.functional.rounding import is_constant
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.rollouts.talk import Reply


@dataclass(frozen=True)
class EndedConversation:
    """One side of a conversation that is to be trained on."""

    replies: list[Reply]  # its replies, in order, with their rewards
    episode: int = 0  # number of the conversation
    group: int = 0  # number shared by conversations about the same prompt
    last_value: float = 0.0  # value after its last token; 0 unless it is bootstrapped

    @property
    def n_tokens(self) -> int:
        """Number of agent tokens."""
        return sum(reply.n_tokens for reply in self.replies)

    @property
    def rewards(self) -> np.ndarray:
        """Task rewards of all tokens. Shape (n_tokens,)."""
        return np.concatenate([reply.rewards for reply in self.replies])  # type: ignore[arg-type]


class EvaluatedRows:
    """Rows of conversations that have ended, with values and reference log-probabilities.

    With ``join``, turns are joined to rows when their conversation has ended, and evaluated then. Otherwise, and in
    lockstep, where all processes must run the same number of passes, each batch of replies is evaluated at once.
    """

    def __init__(self, policy: LMActorCriticPolicy, join: bool) -> None:
        self._policy, self._join, self._at_once = policy, join, policy.lockstep or not join
        self._ended: list[EndedConversation] = []  # whose rows are not built yet
        self._rows: list[Replies] = []

    def add(self, replies: Replies | None) -> Replies | None:
        """Evaluate new replies, or conversations that have ended; returns the replies in main memory."""
        if not self._at_once:
            self._take_ended()
        if replies is None:
            return None
        if self._at_once:
            evaluate(self._policy, replies)
        return replies.to("cpu")

    def end(self, conversation: EndedConversation) -> None:
        """Note that a conversation has ended, which is to be trained on."""
        self._ended.append(conversation)

    def all(self) -> Replies:
        """All conversations that have ended, in this order, evaluated and in main memory."""
        self._take_ended()
        return Replies.concatenate(self._rows)

    def _take_ended(self) -> None:
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        replies = [reply for each in ended for reply in each.replies]
        rows = _in_one_batch(replies)
        counts = torch.tensor([len(each.replies) for each in ended])
        rows.episode = torch.tensor([each.episode for each in ended]).repeat_interleave(counts)
        rows.group = torch.tensor([each.group for each in ended]).repeat_interleave(counts)
        rows.last_value = torch.zeros(len(replies))
        rows.last_value[counts.cumsum(dim=0) - 1] = torch.tensor([each.last_value for each in ended])
        rows.task_rewards = rows.scattered(np.concatenate([each.rewards for each in ended]))
        cut = np.array([reply.is_cut for reply in replies], dtype=np.float32)
        rows.cut = rows.scattered(np.repeat(cut, [reply.n_tokens for reply in replies]))
        if self._join:
            rows = joined_turns(rows)
        if not self._at_once:
            rows = rows.to(self._policy.device)
            evaluate(self._policy, rows)
            rows = rows.to("cpu")
        self._rows.append(rows)


def _in_one_batch(replies: Sequence[Reply]) -> Replies:
    """The tokens of replies, one row each."""
    places: dict[int, list[int]] = defaultdict(list)  # by batch
    for place, reply in enumerate(replies):
        places[id(reply.batch)].append(place)
    parts = []
    for own in places.values():
        batch = replies[own[0]].batch
        assert batch is not None
        parts.append(batch[torch.tensor([replies[place].row for place in own])])
    order = np.argsort(np.concatenate([*places.values()]))
    return Replies.concatenate(parts)[torch.as_tensor(order)]


@torch.no_grad()
def evaluate(policy: LMActorCriticPolicy, replies: Replies) -> None:
    """Add values and reference log-probabilities."""
    replies.values = replies.computed(policy.predict_sequence_values, policy.lockstep)
    replies.ref_log_probs = replies.computed(policy.reference_log_probs, policy.lockstep, policy.n_logits)


ConstantGroups = Literal["keep", "drop", "resample"]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GroupSettings:
    """How conversations are grouped."""

    size: int = 1  # number of consecutive environments that answer the same prompts
    # Groups with equal task rewards: keep them, drop them, or resample: do not count their tokens either, so that
    # further groups are collected instead (dynamic sampling of DAPO; Yu et al. 2025, arXiv 2503.14476).
    constant: ConstantGroups = "keep"
    max_resampling: int = 3  # resample ends when the constant groups hold this many times the tokens of an iteration


class Groups:
    """Decides which conversations of a rollout are trained on."""

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._open: dict[int, list[EndedConversation | None]] = defaultdict(list)
        self._constant: list[EndedConversation] = []
        self._has_chosen = False
        self.n_tokens = 0  # agent tokens that count towards an iteration
        self.found_constant: list[bool] = []  # per complete group: constant up to rounding, or fewer than two rewards

    def add(self, group: int, conversation: EndedConversation | None) -> list[EndedConversation]:
        """Add an ended conversation, ``None`` if it failed; returns those to train on: it, or all of a whole group."""
        self._open[group].append(conversation)
        chosen = [conversation] if conversation is not None and self._settings.constant == "keep" else []
        if len(self._open[group]) == self._settings.size:
            ended = [member for member in self._open.pop(group) if member is not None]
            totals = np.array([each.rewards.sum() for each in ended])
            scales = np.array([np.abs(each.rewards).sum() for each in ended])
            self.found_constant.append(is_constant(totals, scales))
            if self._settings.constant != "keep" and not self.found_constant[-1]:
                chosen = ended
            elif self._settings.constant != "keep":
                self._constant += ended
                self.n_tokens += _n_tokens(ended) if self._settings.constant == "drop" else 0
        self._has_chosen |= bool(chosen)
        self.n_tokens += _n_tokens(chosen)
        return chosen

    def is_enough(self, n_tokens: int) -> bool:
        """Whether a rollout of this many tokens has enough conversations."""
        if self.n_tokens >= n_tokens:
            return True
        limit = self._settings.max_resampling * n_tokens
        if self._settings.constant == "resample" and _n_tokens(self._constant) >= limit:
            end = f"ends the rollout with {self.n_tokens} of {n_tokens} tokens"
            equal = f"{sum(self.found_constant)} of {len(self.found_constant)} groups had equal rewards"
            _logger.warning("%s: alg.args.max_resampling = %d %s", equal, self._settings.max_resampling, end)
            return True
        return False

    def rest(self) -> list[EndedConversation]:
        """Conversations to train on if all groups of the rollout are constant: all of them, so that there are some."""
        return [] if self._has_chosen else self._constant


def _n_tokens(conversations: list[EndedConversation]) -> int:
    return sum(each.n_tokens for each in conversations)
