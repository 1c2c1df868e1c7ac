"""The words of the game."""

from __future__ import annotations

import re

import pytest

from rl4dialog.tasks.guess_the_picture.questions import (
    NO,
    NOT_SEEN,
    NOT_UNDERSTOOD,
    OPEN_QUESTIONS,
    PROBABLY,
    PROBABLY_NOT,
    QUESTIONS,
    YES,
    YES_NO_QUESTIONS,
    Question,
    answer,
    parse,
    values_left,
)
from rl4dialog.tasks.guess_the_picture.scenes import ATTRIBUTES, VIEWS, Scene, scene_table

AT_NIGHT = Scene(
    "a picture at night",
    {
        "thing": "a dog",
        "color": "brown",
        "number": "two",
        "place": "in a park",
        "weather": "snowy",
        "person": "a girl",
    },
    impression=0,
)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.words)
def test_every_question_is_read_back(question: Question) -> None:
    assert parse(question.text) is question
    assert parse(question.text.upper().replace(" ?", "?")) is question


def test_there_is_an_open_question_a_group_and_each_value_for_every_attribute() -> None:
    n_values = sum(len(attribute.values) for attribute in ATTRIBUTES.values())
    assert (len(OPEN_QUESTIONS), len(YES_NO_QUESTIONS)) == (6, 6 + n_values)
    assert len({question.words for question in QUESTIONS}) == len(QUESTIONS)
    assert [question.is_broad for question in QUESTIONS].count(True) == 6


@pytest.mark.parametrize("text", ["", "?", "is it a cow ?", "dog", YES, "what is it ? who is there ?", "is it\0red ?"])
def test_anything_else_is_not_a_question(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("asked", "brief", "in_sentences"),
    [
        ("what is it ?", "a dog", "it is a dog"),
        ("how many are there ?", "two", "there are two"),
        ("where is it ?", "in a park", "it is in a park"),
        ("who is there ?", "a girl", "there is a girl"),
        ("is it an animal ?", "yes", "yes , it is"),
        ("is it a car ?", "no", "no , it is not"),
        ("are there two ?", "yes", "yes , there are"),
        ("are there more than four ?", "no", "no , there are not"),
        ("is there a child ?", "yes", "yes , there is"),
        ("what color is it ?", NOT_SEEN, NOT_SEEN),
        ("is it brown ?", NOT_SEEN, NOT_SEEN),
        ("is it a dark color ?", PROBABLY, PROBABLY),
        ("how is the weather ?", NOT_SEEN, NOT_SEEN),
        ("is it snowy ?", NOT_SEEN, NOT_SEEN),
        ("is the weather bad ?", PROBABLY, PROBABLY),
    ],
)
def test_answers_about_a_picture_at_night(asked: str, brief: str, in_sentences: str) -> None:
    question = parse(asked)
    assert question is not None
    assert answer(question, AT_NIGHT, False) == brief
    assert answer(question, AT_NIGHT, True) == in_sentences


@pytest.mark.parametrize("in_sentences", [False, True])
def test_answers_are_understood_as_what_is_true(in_sentences: bool) -> None:
    for scene in scene_table(60, 0):
        for question in QUESTIONS:
            left = values_left(question, answer(question, scene, in_sentences))
            assert (left is not None) == question.is_answered(VIEWS[scene.view])
            if left is not None:
                assert scene.values[question.attribute] in left < set(ATTRIBUTES[question.attribute].values)


def test_open_answers_leave_one_value_and_others_a_part() -> None:
    color, dark, red = map(parse, ("what color is it ?", "is it a dark color ?", "is it red ?"))
    assert color is not None and dark is not None and red is not None
    others = {"yellow", "white", "black", "brown", "blue"}
    assert values_left(color, "red") == values_left(color, "it is red") == {"red"}
    assert values_left(dark, PROBABLY) == {"black", "brown", "blue"}
    assert values_left(dark, "no , it is not") == values_left(dark, PROBABLY_NOT) == {"red", "yellow", "white"}
    assert values_left(red, NO) == others
    for question in (color, dark, red):
        assert all(values_left(question, text) is None for text in (NOT_SEEN, NOT_UNDERSTOOD, "", "a dog"))
    assert values_left(color, YES) is None and values_left(red, "red") is None


def test_vocabulary_is_small_and_in_lower_case() -> None:
    texts = [NOT_UNDERSTOOD, *VIEWS, *(question.text for question in QUESTIONS)]
    texts += [answer(q, scene, style) for scene in scene_table(99, 0) for q in QUESTIONS for style in (True, False)]
    words = {word for text in texts for word in text.split(" ")}
    assert all(re.fullmatch(r"[a-z]+|[,?]", word) for word in words)
    assert len(words) <= 90
