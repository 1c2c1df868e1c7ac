"""The tables of scenes, and questions about them."""

import functools

import pytest
from other_processes import assert_other_processes_make_the_same

from rl4dialog.tasks.guess_the_picture import scenes


def test_seed_decides_and_a_longer_table_starts_alike():
    assert scenes.scene_table(30, 1) == scenes.scene_table(60, 1)[:30] != scenes.scene_table(30, 2)
    assert_other_processes_make_the_same(functools.partial(scenes.scene_table, 20, 3))


@pytest.mark.parametrize(
    "meta_info",
    [
        *({}, {"scene": 0}, {"scene": 5, "table": {"n_scenes": 5, "seed": 0}}, {"scene": 0, "table": [5, 0]}),
        *({"scene": "0", "table": {"n_scenes": 5, "seed": 0}}, {"scene": 0, "table": {"n_scenes": 5}}),
        *({"scene": True, "table": {"n_scenes": 5, "seed": 0}}, {"scene": -1, "table": {"n_scenes": 5, "seed": 0}}),
    ],
)
def test_sample_without_a_scene_has_no_table(meta_info):
    assert scenes.table_of(meta_info) is None


AT_NIGHT = scenes.Scene(
    "a picture at night",
    {"thing": "a dog", "color": "brown", "number": "two", "place": "in a park", "weather": "snowy", "person": "a girl"},
    impression=0,
)


def test_there_is_an_open_question_a_group_and_each_value_for_every_attribute():
    assert all(scenes.parse(q.text) is scenes.parse(q.text.upper().replace(" ?", "?")) is q for q in scenes.QUESTIONS)
    n_values = sum(len(attribute.values) for attribute in scenes.ATTRIBUTES.values())
    assert (len(scenes.OPEN_QUESTIONS), len(scenes.YES_NO_QUESTIONS)) == (6, 6 + n_values)
    assert len({question.words for question in scenes.QUESTIONS}) == len(scenes.QUESTIONS)
    assert [question.is_broad for question in scenes.QUESTIONS].count(True) == 6


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
        ("what color is it ?", scenes.NOT_SEEN, scenes.NOT_SEEN),
        ("is it brown ?", scenes.NOT_SEEN, scenes.NOT_SEEN),
        ("is it a dark color ?", scenes.PROBABLY, scenes.PROBABLY),
        ("how is the weather ?", scenes.NOT_SEEN, scenes.NOT_SEEN),
        ("is it snowy ?", scenes.NOT_SEEN, scenes.NOT_SEEN),
        ("is the weather bad ?", scenes.PROBABLY, scenes.PROBABLY),
    ],
)
def test_answers_about_a_picture_at_night(asked, brief, in_sentences):
    question = scenes.parse(asked)
    assert scenes.answer(question, AT_NIGHT, False) == brief
    assert scenes.answer(question, AT_NIGHT, True) == in_sentences


@pytest.mark.parametrize("in_sentences", [False, True])
def test_answers_are_understood_as_what_is_true(in_sentences):
    for scene in scenes.scene_table(60, 0):
        for question in scenes.QUESTIONS:
            left = scenes.values_left(question, scenes.answer(question, scene, in_sentences))
            assert (left is not None) == question.is_answered(scenes.VIEWS[scene.view])
            if left is not None:
                assert scene.values[question.attribute] in left < set(scenes.ATTRIBUTES[question.attribute].values)


def test_open_answers_leave_one_value_and_others_a_part():
    color, dark, red = map(scenes.parse, ("what color is it ?", "is it a dark color ?", "is it red ?"))
    others = {"yellow", "white", "black", "brown", "blue"}
    assert scenes.values_left(color, "red") == scenes.values_left(color, "it is red") == {"red"}
    assert scenes.values_left(dark, scenes.PROBABLY) == {"black", "brown", "blue"}
    assert (
        scenes.values_left(dark, "no , it is not")
        == scenes.values_left(dark, scenes.PROBABLY_NOT)
        == {"red", "yellow", "white"}
    )
    assert scenes.values_left(red, scenes.NO) == others
    for question in (color, dark, red):
        assert all(
            scenes.values_left(question, text) is None for text in (scenes.NOT_SEEN, scenes.NOT_UNDERSTOOD, "", "a dog")
        )
    assert scenes.values_left(color, scenes.YES) is None and scenes.values_left(red, "red") is None
