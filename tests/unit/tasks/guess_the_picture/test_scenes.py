"""The tables of scenes, and questions about them."""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest
from other_processes import assert_other_processes_make_the_same

from rl4dialog.tasks.guess_the_picture.scenes import (
    ATTRIBUTES,
    NO,
    NOT_SEEN,
    NOT_UNDERSTOOD,
    OPEN_QUESTIONS,
    PROBABLY,
    PROBABLY_NOT,
    QUESTIONS,
    VIEWS,
    YES,
    YES_NO_QUESTIONS,
    Scene,
    answer,
    parse,
    scene_table,
    table_of,
    values_left,
)


def test_values_of_an_attribute_differ_and_its_group_is_a_part() -> None:
    assert list(ATTRIBUTES) == ["thing", "color", "number", "place", "weather", "person"]
    for attribute in ATTRIBUTES.values():
        assert len(set(attribute.values)) == len(attribute.values) == 2 * len(attribute.group)
        assert attribute.group < set(attribute.values)
    values = [value for attribute in ATTRIBUTES.values() for value in attribute.values]
    assert len(set(values)) == len(values)
    scenes = scene_table(2000, 0)
    assert [scene.impression for scene in scenes[:6]] == [0, 1, 2, 3, 0, 1]
    for name, attribute in ATTRIBUTES.items():
        counts = Counter(scene.values[name] for scene in scenes)
        assert set(counts) == set(attribute.values)
        assert max(counts.values()) < 1.4 * 2000 / len(attribute.values)
    assert set(Counter(scene.view for scene in scenes)) == set(VIEWS)


def test_seed_decides_and_a_longer_table_starts_alike() -> None:
    assert scene_table(30, 1) == scene_table(60, 1)[:30] != scene_table(30, 2)
    assert_other_processes_make_the_same(functools.partial(scene_table, 20, 3))


def test_table_of_a_sample_is_the_one_that_it_names() -> None:
    assert table_of({"scene": 4, "table": {"n_scenes": 5, "seed": 7}}) == scene_table(5, 7)


@pytest.mark.parametrize(
    "meta_info",
    [
        *({}, {"scene": 0}, {"scene": 5, "table": {"n_scenes": 5, "seed": 0}}, {"scene": 0, "table": [5, 0]}),
        *({"scene": "0", "table": {"n_scenes": 5, "seed": 0}}, {"scene": 0, "table": {"n_scenes": 5}}),
        *({"scene": True, "table": {"n_scenes": 5, "seed": 0}}, {"scene": -1, "table": {"n_scenes": 5, "seed": 0}}),
    ],
)
def test_sample_without_a_scene_has_no_table(meta_info: dict[str, Any]) -> None:
    assert table_of(meta_info) is None


AT_NIGHT = Scene(
    "a picture at night",
    {"thing": "a dog", "color": "brown", "number": "two", "place": "in a park", "weather": "snowy", "person": "a girl"},
    impression=0,
)


def test_there_is_an_open_question_a_group_and_each_value_for_every_attribute() -> None:
    assert all(parse(q.text) is parse(q.text.upper().replace(" ?", "?")) is q for q in QUESTIONS)
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
    others = {"yellow", "white", "black", "brown", "blue"}
    assert values_left(color, "red") == values_left(color, "it is red") == {"red"}
    assert values_left(dark, PROBABLY) == {"black", "brown", "blue"}
    assert values_left(dark, "no , it is not") == values_left(dark, PROBABLY_NOT) == {"red", "yellow", "white"}
    assert values_left(red, NO) == others
    for question in (color, dark, red):
        assert all(values_left(question, text) is None for text in (NOT_SEEN, NOT_UNDERSTOOD, "", "a dog"))
    assert values_left(color, YES) is None and values_left(red, "red") is None
