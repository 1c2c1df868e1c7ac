"""The partner of guess_the_picture."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.types import PartnerReply
from rl4dialog.tasks.guess_the_picture.partner import GuessThePicturePartner
from rl4dialog.tasks.guess_the_picture.questions import NOT_SEEN, NOT_UNDERSTOOD, PROBABLY
from rl4dialog.tasks.guess_the_picture.scenes import scene_table

BRIEF, IN_SENTENCES = 0, 1  # seeds
META = {"scene": 0, "table": {"n_scenes": 200, "seed": 0}}
# A blurred picture of five red dogs at a station, when it is foggy, with a girl: number and person are hard to see.
SCENE = scene_table(200, 0)[0]


def seeing_the_scene(kind: str = "none", seed: int = BRIEF, **args: Any) -> GuessThePicturePartner:
    partner: GuessThePicturePartner = PartnerRegistry.get("guess_the_picture", {"yes_no_penalty": kind, **args})
    partner.reset(META, seed)
    return partner


def asked(partner: GuessThePicturePartner, *questions: str) -> list[PartnerReply]:
    history, replies = [SCENE.view], []
    for question in questions:
        replies.append(partner.reply([*history, question]))
        history += [question, replies[-1].text or ""]
    return replies


def test_game_is_over_when_the_distance_is_halved() -> None:
    questions = ["what is it ?", "what color is it ?", "how many are there ?", "where is it ?", "who is there ?"]
    partner = seeing_the_scene()
    replies = asked(partner, "is it fun ?", *questions)
    over = [reply.leaves for reply in replies].index(True)
    rewards = [reply.reward for reply in replies]
    assert rewards[:over] == [-1.0] * over and rewards[over] == 0.0
    assert replies[0] == PartnerReply(NOT_UNDERSTOOD, reward=-1.0)
    partner = seeing_the_scene()
    start = asked(partner, "is it fun ?") and partner.outcome()["rank"]
    asked(partner, *questions[: over - 1])
    assert partner.outcome()["success"] == 0.0 and partner.outcome()["rank"] - 1 > (start - 1) / 2
    asked(partner, questions[over - 1])
    assert partner.outcome()["success"] == 1.0 and partner.outcome()["rank"] - 1 <= (start - 1) / 2
    assert partner.outcome()["rounds"] == over + 1


@pytest.mark.parametrize("max_rounds", [1, 3, 10])
def test_game_is_over_after_the_last_round_which_costs_nothing(max_rounds: int) -> None:
    partner = seeing_the_scene(max_rounds=max_rounds)
    replies = asked(partner, *["is it fun ?"] * max_rounds)
    assert [reply.reward for reply in replies] == [-1.0] * (max_rounds - 1) + [0.0]
    assert [reply.leaves for reply in replies] == [False] * (max_rounds - 1) + [True]
    outcome = partner.outcome()
    assert (outcome["success"], outcome["rounds"]) == (0.0, max_rounds)
    assert set(outcome) == set(partner.outcomes)


ASKED = {
    (BRIEF, "is it foggy ?"): "yes",
    (IN_SENTENCES, "is it foggy ?"): "yes , it is",
    (BRIEF, "is it sunny ?"): "no",
    (BRIEF, "is there a child ?"): PROBABLY,
    (BRIEF, "who is there ?"): NOT_SEEN,
    (BRIEF, "is it fun ?"): NOT_UNDERSTOOD,
    (BRIEF, "where is it ?"): "at a station",
    (IN_SENTENCES, "where is it ?"): "it is at a station",
}


@pytest.mark.parametrize(
    ("kind", "n_penalized"), [("none", ""), ("hard", "- -"), ("soft", "---"), ("conservative", "------")]
)
def test_penalty_depends_on_the_answer(kind: str, n_penalized: str) -> None:
    for ((seed, question), said), mark in zip(ASKED.items(), n_penalized.ljust(len(ASKED)), strict=True):
        partner = seeing_the_scene(kind, seed)
        (reply,) = asked(partner, question)
        assert reply.text == said
        assert reply.reward == (0.0 if reply.leaves else -1.0) - (2.0 if mark == "-" else 0.0), (kind, said)


def test_penalty_is_also_paid_in_the_last_round() -> None:
    (reply,) = asked(seeing_the_scene("hard", max_rounds=1), "is it foggy ?")
    assert reply == PartnerReply("yes", reward=-2.0, leaves=True)


def test_half_of_the_games_are_answered_in_sentences() -> None:
    texts = [asked(seeing_the_scene(seed=seed), "is it foggy ?")[0].text for seed in range(400)]
    assert set(texts) == {"yes", "yes , it is"} and 160 < texts.count("yes") < 240


def test_reset_forgets_the_last_game() -> None:
    partner = seeing_the_scene()
    asked(partner, "what is it ?", "who is there ?")
    partner.reset(META, BRIEF)
    fresh = seeing_the_scene()
    for one in (partner, fresh):
        asked(one, "where is it ?")
    assert partner.outcome() == fresh.outcome()


def test_copies_continue_a_game_independently() -> None:
    partner = seeing_the_scene()
    asked(partner, "is it fun ?")
    copies = [copy.deepcopy(partner), pickle.loads(pickle.dumps(partner))]
    found = [(asked(one, "how is the weather ?"), one.outcome()) for one in (partner, *copies)]
    assert found[0] == found[1] == found[2] and found[0][1]["rounds"] == 2.0


@pytest.mark.parametrize("meta_info", [{}, {"scene": 3}, {"scene": 200, "table": {"n_scenes": 200, "seed": 0}}])
def test_sample_without_a_scene_is_an_error(meta_info: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"meta_data\['scene'\].*use the datapool guess_the_picture"):
        GuessThePicturePartner().reset(meta_info, seed=0)


@pytest.mark.parametrize("args", [{"yes_no_penalty": "hrad"}, {"max_rounds": 0}, {"yes_no_penalty": True}])
def test_registry_checks_arguments(args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(args))):
        PartnerRegistry.check("guess_the_picture", args)


def test_import_does_not_load_torch() -> None:
    code = "import sys, rl4dialog.tasks.guess_the_picture.datapool; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
