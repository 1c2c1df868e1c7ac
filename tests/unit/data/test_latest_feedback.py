"""Which judgements of a feedback file hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from feedback_files import conversation_rating, correction, preference, rating, write_feedback

from rl4dialog.core.errors import DataError
from rl4dialog.core.feedback import Feedback
from rl4dialog.core.types import AGENT
from rl4dialog.data.dialogue_text import dialogue_text
from rl4dialog.data.latest_feedback import conversation_of, count_kinds, judged_dialogue, latest, read_latest


def test_later_judgement_of_the_same_reply_holds() -> None:
    given = [rating("a", 1), rating("b", 1), rating("a", -1), correction("a", "x"), correction("a", "y")]
    assert [(each.kind, each.rating, each.correction) for each in latest(given)] == [
        ("rating", -1, None),
        ("rating", 1, None),
        ("correction", None, "y"),
    ]


def test_other_turns_or_persona_are_another_judgement() -> None:
    given = [rating("a", 1), rating("a", -1, turns=("hi", "oh", "why?")), rating("a", -1, persona="a cook")]
    assert latest(given) == given
    assert len({conversation_of(each) for each in given}) == 3


@pytest.mark.parametrize("last", [preference("b", "a", 0), preference("a", "b", 1)])
def test_a_over_b_and_b_over_a_is_the_later_choice(last) -> None:  # type: ignore[no-untyped-def]
    assert latest([preference("a", "b", 0), last]) == [last]


def test_correction_and_choice_between_the_same_texts_replace_each_other() -> None:
    fix, choice = correction("a", "x"), preference("a", "x", 0)
    assert latest([fix, choice]) == [choice]
    assert latest([choice, fix]) == [fix]
    assert latest([fix, choice, correction("a", "y")])[0] == choice


def test_rating_of_a_conversation_replaces_an_earlier_one_of_the_same_conversation_only() -> None:
    given = [rating("a", 1), conversation_rating("a", 1), conversation_rating("a", -1, answer="oh")]
    assert latest([*given, again := conversation_rating("a", -1)]) == [given[0], again, given[2]]
    assert count_kinds(given) == "1 rating, 2 conversation ratings"


def test_conversation_is_judged_as_a_whole_and_a_reply_after_what_is_given() -> None:
    whole = judged_dialogue(conversation_rating("a", 1, ("hi", "oh", "why?"), answer="yes", persona="a cook"), "a")
    assert dialogue_text(whole) == "Persona: a cook\nUser: hi\nAssistant: oh\nUser: why?\nAssistant: a\nUser: yes"
    assert whole.texts(AGENT) == ["oh", "a"]
    assert judged_dialogue(rating("a", 1, ("hi", "oh", "why?")), "a").texts(AGENT) == ["a"]
    assert dialogue_text(judged_dialogue(conversation_rating("hello", 1, ()), "hello")) == "Assistant: hello"
    starts = [conversation_of(conversation_rating(text, 1, ())) for text in ("a", "b")]
    assert starts[0] != starts[1]


@pytest.mark.parametrize("given", [rating("a", 1), preference("a", "b", 0), correction("a", "x")])
def test_judgement_that_was_withdrawn_does_not_hold_until_it_is_given_again(given: Feedback, tmp_path: Path) -> None:
    other = rating("b", -1)
    assert latest([given, other, given.withdrawal()]) == [other]
    assert latest([given, given.withdrawal(), given]) == [given]
    with pytest.raises(DataError, match=r"f.jsonl has no feedback"):
        read_latest(write_feedback(tmp_path / "f.jsonl", [given, given.withdrawal()]))


def test_file_without_feedback_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"f.jsonl has no feedback; rl4dialog chat and rl4dialog ui write it"):
        read_latest(write_feedback(tmp_path / "f.jsonl", []))


def test_line_of_another_version_is_an_error(tmp_path: Path) -> None:
    path = write_feedback(tmp_path / "f.jsonl", [rating("a", 1)])
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(DataError, match=r"f.jsonl:1: version must be 1, not 2"):
        read_latest(path)
