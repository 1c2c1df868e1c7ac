"""The partner of guess_what."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import PartnerReply
from rl4dialog.tasks.guess_what.partner import GuessWhatPartner
from rl4dialog.tasks.guess_what.questions import OPENING
from rl4dialog.tasks.guess_what.things import PROPERTIES, THINGS


def thinking_of(thing: str) -> GuessWhatPartner:
    partner = GuessWhatPartner()
    partner.reset({"thing": thing}, seed=0)
    return partner


@pytest.mark.parametrize("thing", THINGS)
def test_answers_are_those_of_the_table(thing: str) -> None:
    partner = thinking_of(thing)
    for words, things in PROPERTIES.items():
        assert partner.reply([OPENING, f"{words} ?"]) == ("yes" if thing in things else "no")
    assert partner.outcome() == {"success": 0.0}


def test_wrong_guess_is_denied_and_the_right_one_wins() -> None:
    partner = thinking_of("apple")
    assert partner.outcomes == ("success",) and partner.outcome() == {"success": 0.0}
    assert partner.reply([OPENING, "is it a dog ?"]) == "no"
    assert partner.outcome() == {"success": 0.0}
    reply = partner.reply([OPENING, "is it a dog ?", "no", "Is it an apple?"])
    assert reply == PartnerReply("yes , it is an apple !", leaves=True)
    assert partner.outcome() == {"success": 1.0}


@pytest.mark.parametrize("nonsense", ["", "dog", "is it nice ?", "yes", "is it an dog ?", "\0", "is it alive " * 9999])
def test_nonsense_is_not_understood(nonsense: str) -> None:
    assert thinking_of("dog").reply([OPENING, nonsense]) == "i do not understand"


def test_only_the_last_utterance_is_answered() -> None:
    assert thinking_of("dog").reply([OPENING, "is it a dog ?", "no", "is it alive ?"]) == "yes"


def test_reset_forgets_the_last_conversation() -> None:
    partner = thinking_of("dog")
    partner.reply(["is it a dog ?"])
    partner.reset({"thing": "bee"}, seed=0)
    assert partner.outcome() == {"success": 0.0}
    assert partner.reply(["is it a dog ?"]) == "no"


@pytest.mark.parametrize("meta_info", [{}, {"thing": "cat"}, {"thing": None}, {"thing": ["dog"]}])
def test_sample_without_a_thing_is_an_error(meta_info: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"meta_data\['thing'\].*not .*datapool guess_what \(things: dog, mouse"):
        GuessWhatPartner().reset(meta_info, seed=0)


def test_copies_go_on_where_they_were() -> None:
    partner = thinking_of("dog")
    partner.reply(["is it a dog ?"])
    for copied in (copy.deepcopy(partner), pickle.loads(pickle.dumps(partner))):
        assert copied.outcome() == {"success": 1.0} and copied.reply(["is it alive ?"]) == "yes"


def test_import_does_not_load_torch() -> None:
    code = "import sys, rl4dialog.tasks.guess_what.partner; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
