"""Placeholders in place of values, and back."""

from __future__ import annotations

import pytest
from worlds import tiny_world

from rl4dialog.tasks.dialogue_acts.acts import BOOK, BOOKING, GENERAL, INFORM, REQ_MORE, REQUEST, DialogueAct
from rl4dialog.tasks.dialogue_acts.placeholders import Delexicalizer, filled, placeholder, placeholders_in

TEMPLATES = tiny_world().templates
DELEXICALIZE = Delexicalizer(TEMPLATES)


def inform(slot: str, value: str, domain: str = "restaurant") -> DialogueAct:
    return DialogueAct(INFORM, domain, slot, value)


def test_placeholder_has_a_number_from_the_second_value_on() -> None:
    acts = [inform("name", "1"), inform("name", "2"), inform("price", "1", "train")]
    text = " ".join(map(placeholder, acts))
    assert text == "[restaurant_name] [restaurant_name_2] [train_price]"
    assert placeholders_in(text) == acts
    assert placeholders_in(f"{text} [restaurant_name]!") == acts, "each one once"


@pytest.mark.parametrize("text", ["", "name", "[name]", "[ ]", "[restaurant_]", "[_name]", "[]]", "[a_b_c]"])
def test_other_brackets_are_no_placeholders(text: str) -> None:
    assert placeholders_in(text) == []
    assert filled(text, {("restaurant", "name", "1"): "x"}) == text


def test_placeholder_without_a_value_stays() -> None:
    values = {("restaurant", "name", "1"): "red house", ("restaurant", "area", "1"): ""}
    text = "[restaurant_name] is in the [restaurant_area]; [restaurant_name_2] is not."
    assert filled(text, values) == "red house is in the [restaurant_area]; [restaurant_name_2] is not."


@pytest.mark.parametrize(
    ("text", "acts", "expected"),
    [
        (
            "The Thai north 0 serves  THAI food.",
            [inform("name", "thai north 0"), inform("food", "thai")],
            "The [restaurant_name] serves  [restaurant_food] food.",
        ),
        (
            "thai north 0 or greek north 1, both in the north",
            [inform("name", "thai north 0"), inform("name", "greek north 1")],
            "[restaurant_name] or [restaurant_name_2], both in the [restaurant_area]",
        ),
        # Numbers are spelled in many ways.
        ("Their phone is 0-1.", [inform("phone", "01")], "Their phone is [restaurant_phone]."),
        # The longest value counts.
        ("thai north 0!", [inform("name", "thai north 0"), inform("food", "thai")], "[restaurant_name]!"),
        ("There are 14 in town.", [inform("area", "centre")], "There are [restaurant_choice] in town."),
        ("I found several.", [DialogueAct(REQUEST, "restaurant", "food")], "I found [restaurant_choice]."),
        ("Anything else?", [DialogueAct(REQ_MORE, GENERAL)], "Anything else?"),
        ("It is for Monday.", [DialogueAct(BOOK, BOOKING, "day", "monday")], "It is for [restaurant_day]."),
    ],
)  # fmt: skip
def test_values_of_an_utterance_become_placeholders(text: str, acts: list[DialogueAct], expected: str) -> None:
    assert DELEXICALIZE(text, acts, "restaurant") == expected


@pytest.mark.parametrize("with_words", [True, False])
def test_words_of_templates_become_words_of_templates(with_words: bool) -> None:
    acts = [inform("name", "thai north 0"), inform("food", "thai"), inform("phone", "00")]
    text = TEMPLATES.render(acts, "agent") if with_words else ""
    assert DELEXICALIZE(text, acts, "restaurant") == (
        "There is a restaurant called [restaurant_name], serving [restaurant_food] food, with phone number "
        "[restaurant_phone]."
    )
