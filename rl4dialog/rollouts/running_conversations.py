"""Conversations of a rollout that have not ended: their replies, their rewards so far, and what is logged of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, get_args

import numpy as np
import torch

from rl4dialog.core.types import Dialogue, EndedBy
from rl4dialog.rollouts.conversations import Conversations, EndedConversation
from rl4dialog.rollouts.conversing import Speech
from rl4dialog.rollouts.groups import Groups, GroupSettings
from rl4dialog.rollouts.said_tokens import SaidTokens, with_tokens
from rl4dialog.rollouts.statistics import RolloutStats, measure_sampler


class RunningConversations:
    """Conversations in progress and their rewards.

    Args:
        conversations: Takes the replies, and the conversations that have ended.
        n_envs: Number of environments.
        groups: How environments are grouped.
        has_partner: Whether there is a partner, so that its conversations are logged.
        keeps_dialogues: Whether to keep the texts of conversations, which infos must contain.

    Attributes:
        stats: Statistics so far.
        series: Numbers to average, by key.
        replies: For each environment, the numbers of the replies of its conversation.
        earned: Task rewards per token of each reply; NaN until it is answered, or if a reward failed.
        cut: Whether each reply was cut at the length limit.
        earned_by_part: For each environment, the raw values of the parts of the reward in its conversation.
        is_running: Whether a conversation has begun and not ended, per environment; its partner may have begun it.
        n_done: Number of conversations that have ended, per environment.
        n_spoken: Number of agent tokens.
        groups: Conversations by prompt.
    """

    def __init__(
        self,
        conversations: Conversations,
        n_envs: int,
        groups: GroupSettings,
        has_partner: bool,
        keeps_dialogues: bool = False,
    ) -> None:
        self._conversations, self._group_size, self._has_partner = conversations, groups.size, has_partner
        self._keeps_dialogues = keeps_dialogues
        self._dialogues: list[tuple[EndedConversation, Dialogue, str, bool]] = []
        self.groups = Groups(groups)
        self.stats = RolloutStats()
        self.series: dict[str, list[float]] = defaultdict(list)
        self.replies: list[list[int]] = [[] for _ in range(n_envs)]
        self.earned: list[np.ndarray] = []
        self.cut: list[bool] = []
        self.earned_by_part: list[dict[str, float]] = [defaultdict(float) for _ in range(n_envs)]
        self.is_running = np.zeros(n_envs, dtype=bool)
        self.n_done = np.zeros(n_envs, dtype=int)
        self.n_spoken = 0

    @property
    def n_begun(self) -> np.ndarray:
        """Number of conversations that have begun, per environment."""
        return self.n_done + self.is_running

    def add(self, speech: Speech) -> None:
        """Add what the agent said."""
        if speech.replies is not None:
            n_before = torch.tensor([len(self.replies[row]) for row in speech.agent_rows])
            mask = speech.replies.response_mask
            speech.replies.turn = mask * n_before[:, None].to(mask.device)
        replies = self._conversations.add(speech.replies)
        if replies is None:
            return
        measure_sampler(replies, self.series)
        for row, n in zip(speech.agent_rows, replies.response_mask.sum(dim=1).tolist(), strict=True):
            self.replies[row].append(len(self.earned))
            self.earned.append(np.full(n, np.nan, dtype=np.float32))
            self.cut.append(False)
            self.n_spoken += n

    def count_turn(self, info: dict[str, Any]) -> None:
        """Log a turn that is complete."""
        if "error" in info:
            return
        self.series["rollout/cut_replies"].append(float(info["utterance_truncated"]))
        if self._has_partner:
            self.series["rollout/context_dropped"].append(float(info["context_dropped"]))
            self.series["rollout/empty_replies"].append(float(not info["gen_text"]))
            self.series["rollout/partner_echo"].append(float(info["partner_echoes"]))

    def end(self, row: int, info: dict[str, Any], last_value: float, is_bootstrapped: bool = False) -> None:
        """End the conversation of an environment; it is trained on unless a reward failed or its group is left out."""
        numbers, self.replies[row], self.is_running[row] = self.replies[row], [], False
        for name, value in self.earned_by_part[row].items():
            self.series[f"rollout/reward/{name}"].append(value)
        self.earned_by_part[row] = defaultdict(float)
        if self._has_partner:
            self.series["rollout/partner_failed"].append(float(info.get("partner_failed", False)))
            if "error" not in info:
                self.series["rollout/turns"].append(float(len(numbers)))
                for cause in get_args(EndedBy):
                    self.series[f"rollout/ended_by/{cause}"].append(float(info["ended_by"] == cause))
        group = self.n_done[row] * len(self.replies) + row // self._group_size
        self.n_done[row] += 1
        rewards = [self.earned[number] for number in numbers]
        if not rewards or any(np.isnan(per_token).any() for per_token in rewards):
            self.stats.n_masked += 1
            self.keep(self.groups.add(group, None))
            return
        cut, episode = [self.cut[number] for number in numbers], len(self.stats.episodes)
        conversation = EndedConversation(numbers, rewards, cut, episode, group, last_value)
        total = float(sum(per_token.sum() for per_token in rewards))
        self.stats.episodes.append({"r": total, "l": float(conversation.n_tokens)})
        if self._keeps_dialogues:
            self._dialogues.append((conversation, info["dialogue"], info["prompt_text"], is_bootstrapped))
        self.keep(self.groups.add(group, conversation))

    def dialogues(self, tokenizer: str) -> list[Dialogue]:
        """All conversations that have ended without a failure, with tokens, also those of groups that are left out.

        Args:
            tokenizer: Hash of the tokenizer.
        """
        found = []
        for ended, dialogue, prompt, is_bootstrapped in self._dialogues:
            replies = self._conversations.replies_of(np.array(ended.numbers))
            tokens = zip(replies.per_row("response_ids"), replies.per_row("log_probs"), ended.earned, strict=True)
            said = [SaidTokens(ids, log_probs, earned) for ids, log_probs, earned in tokens]
            found.append(with_tokens(dialogue, said, prompt, tokenizer, is_bootstrapped))
        return found

    def keep(self, conversations: list[EndedConversation]) -> None:
        """Train on these conversations."""
        for conversation in conversations:
            self._conversations.end(conversation)
            self.stats.n_tokens += conversation.n_tokens
