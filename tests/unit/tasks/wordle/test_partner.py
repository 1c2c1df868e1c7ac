"""The partner of Wordle."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.types import PartnerReply
from rl4dialog.tasks.wordle.partner import WordlePartner
from rl4dialog.tasks.wordle.rules import OPENING


def hiding(word: str, **args: Any) -> WordlePartner:
    partner = WordlePartner(**args)
    partner.reset({"word": word}, seed=0)
    return partner


def test_wrong_guesses_cost_one_and_the_word_ends_the_game() -> None:
    partner = hiding("crane")
    assert partner.pays and partner.checks_samples and partner.outcomes == ("success", "malformed")
    assert partner.reply([OPENING, "clean"]) == PartnerReply("gbyyy", reward=-1.0)
    assert partner.outcome() == {"success": 0.0, "malformed": 0.0}
    assert partner.reply([OPENING, "clean", "gbyyy", "crane"]) == PartnerReply("ggggg", reward=0.0, leaves=True)
    assert partner.outcome() == {"success": 1.0, "malformed": 0.0}


@pytest.mark.parametrize("nonsense", ["", "cran", "cranes", "CRANE", "c r a n e", "bbbb ", "no word", "a" * 9999, "\0"])
def test_what_is_no_guess_costs_one_and_gets_no_colours(nonsense: str) -> None:
    partner = hiding("crane")
    assert partner.reply([OPENING, nonsense]) == PartnerReply("no word", reward=-1.0)
    partner.reply([OPENING, nonsense, "no word", nonsense])
    assert partner.outcome() == {"success": 0.0, "malformed": 2.0}


def test_letters_are_written_with_spaces() -> None:
    partner = hiding("crane", letters="spaced")
    assert partner.reply([OPENING, "c l e a n"]) == PartnerReply("g b y y y", reward=-1.0)
    assert partner.reply([OPENING, "clean"]).text == "no word"
    assert partner.reply([OPENING, "c r a n e"]).leaves


def test_colouring_of_repeated_letters_is_chosen() -> None:
    assert hiding("abide").reply([OPENING, "speed"]).text == "bbyyy"
    assert hiding("abide", duplicates="official").reply([OPENING, "speed"]).text == "bbyby"


def test_any_five_letters_are_a_guess_unless_a_list_is_given(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("crane\nclean\n")
    assert hiding("crane").reply([OPENING, "zzzzz"]) == PartnerReply("bbbbb", reward=-1.0)
    listed = hiding("crane", guesses="listed", path=str(path))
    assert listed.reply([OPENING, "zzzzz"]) == PartnerReply("no word", reward=-1.0)
    assert listed.reply([OPENING, "clean"]) == PartnerReply("gbyyy", reward=-1.0)
    assert hiding("music", guesses="listed", word_list=40).reply([OPENING, "crane"]).text == "no word"
    with pytest.raises(DataError, match=r"is a word of the partner's list, not 'music'; use the datapool wordle, with"):
        listed.reset({"word": "music"}, 0)


def test_reset_forgets_the_last_conversation() -> None:
    partner = hiding("crane")
    partner.reply([OPENING, "x"])
    partner.reply([OPENING, "crane"])
    partner.reset({"word": "music"}, seed=0)
    assert partner.outcome() == {"success": 0.0, "malformed": 0.0}
    assert not partner.reply([OPENING, "crane"]).leaves


@pytest.mark.parametrize("meta_info", [{}, {"word": "cran"}, {"word": "Crane"}, {"word": None}, {"word": ["crane"]}])
def test_sample_without_a_word_is_an_error(meta_info: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"meta_data\['word'\] is five lower-case letters, not .*datapool wordle"):
        WordlePartner().reset(meta_info, seed=0)


@pytest.mark.parametrize(("name", "value"), [("letters", "spaced"), ("duplicates", "official")])
def test_sample_of_other_rules_is_an_error(name: str, value: str) -> None:
    meta_info = {"word": "crane", name: value}
    with pytest.raises(DataError, match=f"has {name}: (plain|simple), but the sample was made with {name}: {value}"):
        WordlePartner().reset(meta_info, seed=0)
    WordlePartner(**{name: value}).reset(meta_info, seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"word_list": 40}, "word_list and path are the words that guesses: listed allows"),
        ({"path": "x.txt"}, "word_list and path are the words that guesses: listed allows"),
        ({"guesses": "listed"}, "neither of them is given"),
        ({"guesses": "listed", "word_list": 40, "path": "x.txt"}, "both of them is given"),
        ({"guesses": "listed", "path": "/no/such/file"}, "/no/such/file cannot be read"),
    ],
)
def test_list_without_use_and_use_without_list_are_errors(args: dict[str, Any], message: str) -> None:
    PartnerRegistry.check("wordle", args)
    with pytest.raises(DataError, match=message):
        PartnerRegistry.get("wordle", args)


@pytest.mark.parametrize("args", [{"word_list": 41}, {"letters": "tight"}, {"duplicates": 1}, {"guesses": "all"}])
def test_values_are_checked(args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(args))):
        PartnerRegistry.check("wordle", args)


def test_copies_go_on_where_they_were() -> None:
    partner = hiding("crane")
    partner.reply([OPENING, "x"])
    for copied in (copy.deepcopy(partner), pickle.loads(pickle.dumps(partner))):
        assert copied.outcome() == {"success": 0.0, "malformed": 1.0} and copied.reply(["crane"]).leaves


def test_import_does_not_load_torch() -> None:
    modules = "rl4dialog.tasks.wordle.datapool, rl4dialog.tasks.wordle.partner"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
