"""Conversations of a rollout that have not ended: their replies, their rewards so far, and what is logged of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, get_args

import numpy as np
import torch

from rl4dialog.core.types import Dialogue, EndedBy
from rl4dialog.functional.replies import Replies
from rl4dialog.rollouts.conversations import Conversations, EndedConversation
from rl4dialog.rollouts.conversing import Speech
from rl4dialog.rollouts.groups import Groups, GroupSettings
from rl4dialog.rollouts.said_tokens import SaidTokens, with_tokens
from rl4dialog.rollouts.statistics import RolloutStats, measure_sampler
from rl4dialog.text.end_of_turn import EndOfTurn


class RunningConversations:
    """Conversations in progress and their rewards.

    Args:
        conversations: Takes the replies, and the conversations that have ended.
        n_envs: Number of environments.
        groups: How environments are grouped.
        has_partner: Whether there is a partner, so that its conversations are logged.
        keeps_dialogues: Whether to keep the texts of conversations, which infos must contain.
        partners_end: Detects the ends of the utterances of a partner that learns; ``None`` if it does not.

    Attributes:
        stats: Statistics so far.
        series: Numbers to average, by key.
        replies: For each environment, the numbers of the replies of its conversation; if the partner learns, its
            replies follow, for each environment.
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
        partners_end: EndOfTurn | None = None,
    ) -> None:
        self._n_envs, self._partners_end = n_envs, partners_end
        self._conversations, self._group_size, self._has_partner = conversations, groups.size, has_partner
        self._keeps_dialogues = keeps_dialogues
        self._dialogues: list[tuple[EndedConversation, Dialogue, str, bool]] = []
        self.groups = Groups(groups)
        self.stats = RolloutStats()
        self.series: dict[str, list[float]] = defaultdict(list)
        self.replies: list[list[int]] = [[] for _ in range(n_envs if partners_end is None else 2 * n_envs)]
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
        """Add what the agent said, and a partner that learns."""
        self._add(speech.replies, speech.agent_rows)
        if speech.partner_replies is not None:
            assert self._partners_end is not None
            n_before = len(self.cut)
            self._add(speech.partner_replies, self._n_envs + speech.partner_rows)
            said = speech.partner_replies.per_row("response_ids")
            self.cut[n_before:] = [not self._partners_end.is_end(ids.tolist()) for ids in said]

    def _add(self, said: Replies | None, places: np.ndarray) -> None:
        """Add utterances to the replies at these places."""
        if said is not None:
            n_before = torch.tensor([len(self.replies[place]) for place in places])
            said.turn = said.response_mask * n_before[:, None].to(said.response_mask.device)
        replies = self._conversations.add(said)
        if replies is None:
            return
        measure_sampler(replies, self.series)
        for place, n in zip(places, replies.response_mask.sum(dim=1).tolist(), strict=True):
            self.replies[place].append(len(self.earned))
            self.earned.append(np.full(n, np.nan, dtype=np.float32))
            self.cut.append(False)
            self.n_spoken += n

    def pay(self, row: int, per_token: np.ndarray, earlier: np.ndarray) -> None:
        """Pay the last turn of an environment, and earlier ones. A partner that learns gets the same for each turn.

        Args:
            row: The environment.
            per_token: Reward of each token of the agent's last reply.
            earlier: Further rewards of its earlier replies, of all or none.
        """
        numbers = self.replies[row]
        self.earned[numbers[-1]] = per_token.astype(np.float32)
        for number, payment in zip(numbers, earlier, strict=False):
            self.earned[number][-1] += payment
        answers = self._answers(row)
        for number in answers:
            self.earned[number] = np.nan_to_num(self.earned[number])
        if not answers:
            return
        self.earned[answers[-1]][-1] += per_token.sum()
        # Every reply of the agent is answered, and the partner may have opened the conversation.
        for number, payment in zip(answers[-len(numbers) :], earlier, strict=False):
            self.earned[number][-1] += payment

    def _answers(self, row: int) -> list[int]:
        """Numbers of the replies of a partner that learns, in the conversation of an environment."""
        return self.replies[self._n_envs + row] if len(self.replies) > self._n_envs else []

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
        places = range(row, len(self.replies), self._n_envs)
        by_side = [self.replies[place] for place in places]
        for place in places:
            self.replies[place] = []
        self.is_running[row] = False
        for name, value in self.earned_by_part[row].items():
            self.series[f"rollout/reward/{name}"].append(value)
        self.earned_by_part[row] = defaultdict(float)
        if self._has_partner:
            self.series["rollout/partner_failed"].append(float(info.get("partner_failed", False)))
            if "error" not in info:
                self.series["rollout/turns"].append(float(len(by_side[0])))
                for cause in get_args(EndedBy):
                    self.series[f"rollout/ended_by/{cause}"].append(float(info["ended_by"] == cause))
        groups = [self.n_done[row] * len(self.replies) + place // self._group_size for place in places]
        self.n_done[row] += 1
        rewards = [[self.earned[number] for number in numbers] for numbers in by_side]
        failed = any(not side or any(np.isnan(per_token).any() for per_token in side) for side in rewards)
        self.stats.n_masked += failed
        for place, numbers, earned, group in zip(places, by_side, rewards, groups, strict=True):
            if failed:
                self.keep(self.groups.add(group, None))
                continue
            cut, episode = [self.cut[number] for number in numbers], len(self.stats.episodes)
            conversation = EndedConversation(numbers, earned, cut, episode, group, last_value)
            total = float(sum(per_token.sum() for per_token in earned))
            self.stats.episodes.append({"r": total, "l": float(conversation.n_tokens)})
            if self._keeps_dialogues and place == row:
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
