"""Payments of conversations in progress reach the replies that they are for, on both sides if both learn."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from tiny import make_tokenizer

from rl4dialog.functional.replies import Replies
from rl4dialog.rollouts.collector import RunningConversations
from rl4dialog.rollouts.conversations import EndedConversation, GroupSettings
from rl4dialog.rollouts.conversing import Speech
from rl4dialog.text.end_of_turn import EndOfTurn

END = 0


class Kept:
    """Takes replies as they are, and the conversations that have ended."""

    def __init__(self) -> None:
        self.ended: list[EndedConversation] = []

    def add(self, replies: Replies | None) -> Replies | None:
        return replies

    def end(self, conversation: EndedConversation) -> None:
        self.ended.append(conversation)


def said(ids: list[int]) -> Replies:
    replies = Replies.from_ids([[5]], [ids])
    replies.log_probs = torch.zeros(replies.response_ids.shape)
    return replies


class Trial:
    """Two environments, of which the first one talks."""

    def __init__(self, both_learn: bool) -> None:
        end = EndOfTurn(make_tokenizer(), [END]) if both_learn else None
        self.kept = Kept()
        self.running = RunningConversations(cast(Any, self.kept), 2, GroupSettings(), True, partners_end=end)

    def agent_says(self, ids: list[int]) -> None:
        self.running.add(Speech(np.zeros((2, 1)), np.array([0]), said(ids), 0.0, 0.0))

    def partner_says(self, ids: list[int]) -> None:
        speech = Speech(np.zeros((2, 1)), np.zeros(0, dtype=int), None, 0.0, 0.0)
        speech.partner_rows, speech.partner_replies = np.array([0]), said(ids)
        self.running.add(speech)

    def ended(self) -> list[list[list[float]]]:
        """What was earned by each token of each utterance of each side."""
        self.running.end(0, {"ended_by": "max_turns"}, 0.0)
        return [[each.tolist() for each in conversation.earned] for conversation in self.kept.ended]


@pytest.mark.parametrize("partner_opens", [False, True])
def test_both_sides_get_the_payments_of_a_turn(partner_opens: bool) -> None:
    trial = Trial(both_learn=True)
    if partner_opens:
        trial.partner_says([9, 9, END])
    for turn, earlier in enumerate([[], [], [10.0, 20.0, 30.0]]):
        trial.agent_says([7, 8, END])
        trial.partner_says([6, END])
        trial.running.pay(0, np.array([1.0, 0.0, 2.0 + turn]), np.array(earlier))
    agent, partner = trial.ended()
    assert agent == [[1.0, 0.0, 12.0], [1.0, 0.0, 23.0], [1.0, 0.0, 34.0]]
    opening = [[0.0, 0.0, 0.0]] if partner_opens else []
    assert partner == [*opening, [0.0, 13.0], [0.0, 24.0], [0.0, 35.0]], "nothing for what opened the conversation"


def test_one_side_gets_the_payments_of_its_turns() -> None:
    trial = Trial(both_learn=False)
    for turn in range(2):
        trial.agent_says([7, END])
        trial.running.pay(0, np.array([0.5, 1.0 + turn]), np.array([10.0, 20.0] if turn else []))
    assert trial.ended() == [[[0.5, 11.0], [0.5, 22.0]]]
    assert trial.running.stats.episodes == [{"r": 34.0, "l": 4.0}]


def test_partner_is_cut_where_no_end_of_an_utterance_was_said() -> None:
    trial = Trial(both_learn=True)
    for ids in ([6, END], [6, 6]):
        trial.agent_says([7, END])
        trial.partner_says(ids)
        trial.running.pay(0, np.zeros(2), np.zeros(0))
    trial.ended()
    assert [conversation.cut for conversation in trial.kept.ended] == [[False, False], [False, True]]
