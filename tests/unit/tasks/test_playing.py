"""Conversations between a scripted player and a partner."""

import random

import pytest

from rl4dialog.core.errors import PartnerError
from rl4dialog.core.protocols import Partner, Player
from rl4dialog.core.types import AGENT, PARTNER, PartnerReply, Sample
from rl4dialog.tasks.playing import play


class Counter(Player):
    def reset(self, meta_info, seed):
        self.name, self.number = meta_info.get("name"), random.Random(seed).random()

    def say(self, history):
        return f"{self.name} {len(history)} {self.number}"


class Answers(Partner):
    def __init__(self, *answers):
        self.answers = answers

    def reset(self, meta_info, seed):
        self.heard = []
        self.seed = seed

    def reply(self, history):
        self.heard.append(list(history))
        return self.answers[len(self.heard) - 1]

    def outcome(self):
        return {"heard": float(len(self.heard))}


SAMPLE = Sample("s", "hi <EOU>", [], {"history": ["a", "b", "c"], "name": "ann"})


def test_speakers_alternate_after_the_given_turns():
    game = play(Counter(), Answers("x", "y", "z"), SAMPLE, 3, seed=0)
    assert [turn.speaker for turn in game.turns] == [PARTNER, AGENT, PARTNER] + [AGENT, PARTNER] * 3
    assert (game.id, game.n_given, game.ended_by, game.outcome) == ("s", 3, "max_turns", {"heard": 3.0})
    assert game.meta_data is SAMPLE.meta_data
    assert game.texts(PARTNER) == ["x", "y", "z"]
    assert [text.split()[:2] for text in game.texts(AGENT)] == [["ann", "3"], ["ann", "5"], ["ann", "7"]]


@pytest.mark.parametrize(
    "last, said", [(None, ["x"]), (PartnerReply(leaves=True), ["x"]), (PartnerReply("bye", leaves=True), ["x", "bye"])]
)
def test_partner_can_leave_with_and_without_a_word(last, said):
    game = play(Counter(), Answers("x", last, "never"), SAMPLE, 3, seed=0)
    assert game.ended_by == "partner" and game.texts(PARTNER) == said and len(game.texts(AGENT)) == 2


def test_silence_is_no_turn_and_rewards_are_the_agents():
    game = play(Counter(), Answers(PartnerReply(reward=0.5), PartnerReply("x", reward=-1.0)), SAMPLE, 2, seed=0)
    assert [(turn.speaker, turn.reward) for turn in game.said] == [(AGENT, 0.5), (AGENT, -1.0), (PARTNER, 0.0)]


def test_seed_decides_and_both_sides_get_different_ones():
    player, partner = Counter(), Answers("x")
    first = play(player, partner, SAMPLE, 1, seed=5)
    assert player.number != random.Random(partner.seed).random()
    assert play(Counter(), Answers("x"), SAMPLE, 1, seed=5) == first != play(player, partner, SAMPLE, 1, seed=6)


def test_failure_of_the_partner_is_an_error():
    with pytest.raises(PartnerError, match="the partner failed on sample 's': no network"):
        play(Counter(), Answers(PartnerReply(failed="no network")), SAMPLE, 1, seed=0)
