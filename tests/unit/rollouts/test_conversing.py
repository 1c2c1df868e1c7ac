"""Scripted players in the conversations of evaluations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tiny import make_env, make_tokenizer

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.protocols import Partner, Player
from rl4dialog.core.types import AGENT, PARTNER, Sample
from rl4dialog.envs.utterance_view import UtteranceView
from rl4dialog.rollouts.conversing import Conversing
from rl4dialog.text.end_of_turn import EndOfTurn

MARKER = "<EOU>"
SAMPLES = [Sample(i, "w1 <EOU>", ["w2"], {"number": i}) for i in range(3)]


class Repeats(Partner):
    """Repeats the agent, and leaves after as many turns as the sample's number, plus one."""

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._n_left = meta_info["number"] + 1

    def reply(self, history: list[str]) -> Any:
        self._n_left -= 1
        return history[-1] if self._n_left else None


class Says(Player):
    """Says given texts in turn."""

    def __init__(self, *texts: Any) -> None:
        self._texts = texts

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self.seed, self.heard = seed, []

    def say(self, history: list[str]) -> str:
        self.heard.append(list(history))
        text = self._texts[(len(self.heard) - 1) % len(self._texts)]
        if isinstance(text, Exception):
            raise text
        return text


def talks_of(players: list[Player], ends: tuple[int, ...] = (0,), seeds: tuple[int, ...] = (5, 6, 7)) -> list[Any]:
    tokenizer = make_tokenizer(marker=MARKER)
    end = EndOfTurn(tokenizer, ends, MARKER)

    def make_view(policy: Any, max_length: int) -> UtteranceView:
        kwargs = {"partner": Repeats(), "max_turns": 5, "max_episode_length": max_length, "max_prompt_length": 40}
        return UtteranceView(make_env(tokenizer, end_of_turn=end, **kwargs))

    policy: Any = SimpleNamespace(device="cpu", reply_limit=lambda: 4)  # has nothing to say
    return Conversing(make_view)(policy, SAMPLES, seeds, players)


def test_players_speak_instead_of_the_policy() -> None:
    players = [Says("w2 w3", "w4") for _ in SAMPLES]
    talks = talks_of(players)
    assert [talk.dialogue.texts(AGENT) for talk in talks] == [["w2 w3"], ["w2 w3", "w4"], ["w2 w3", "w4", "w2 w3"]]
    assert [talk.dialogue.texts(PARTNER) for talk in talks] == [[], ["w2 w3"], ["w2 w3", "w4"]]
    assert [talk.dialogue.ended_by for talk in talks] == ["partner"] * 3
    assert players[1].heard[1][-2:] == ["w2 w3", "w2 w3"]
    assert len({player.seed for player in players}) == 3
    again = [Says("w2") for _ in SAMPLES]
    talks_of(again)
    assert [player.seed for player in again] == [player.seed for player in players]


def test_players_have_the_length_limit_of_the_policy() -> None:
    for said, found in (("w1 w2 w3 w4", "w1 w2 w3 w4"), ("w1 w2 w3 w4 w5", "w1 w2 w3 w4"), ("w1 <EOU> w2", "w1")):
        talks = talks_of([Says(said) for _ in SAMPLES])
        assert talks[0].dialogue.texts(AGENT) == [found], said


def test_silent_player_says_an_empty_utterance() -> None:
    assert talks_of([Says("") for _ in SAMPLES])[1].dialogue.texts(AGENT) == ["", ""]


@pytest.mark.parametrize("wrong", [ValueError("no idea"), 3])
def test_player_that_fails_is_named(wrong: Any) -> None:
    with pytest.raises(DataError, match=r"player Says failed on sample 0: (ValueError: no idea|TypeError)"):
        talks_of([Says(wrong) for _ in SAMPLES])


def test_players_need_an_end_of_sequence() -> None:
    with pytest.raises(ConfigError, match="scripted players need a tokenizer with an end-of-sequence token"):
        talks_of([Says("w1") for _ in SAMPLES], ends=())
