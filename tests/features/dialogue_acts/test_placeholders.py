"""Placeholders in place of values, and what a user understands of them."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import tiny_world

from rl4dialog.features.dialogue_acts.tasks import placeholders
from rl4dialog.features.dialogue_acts.tasks.acts import (
    BOOK,
    BOOKING,
    BOOKS,
    BYE,
    GENERAL,
    INFORM,
    NO_BOOK,
    NO_OFFER,
    OFFER_BOOK,
    REQ_MORE,
    REQUEST,
    THANK,
    WELCOME,
    DialogueAct,
)
from rl4dialog.features.dialogue_acts.tasks.ontology import REFERENCE
from rl4dialog.features.dialogue_acts.tasks.town_guide import town_guide

TEMPLATES = tiny_world().templates


def inform(slot, value, domain="restaurant"):
    return DialogueAct(INFORM, domain, slot, value)


def test_placeholder_has_a_number_from_the_second_value_on():
    acts = [inform("name", "1"), inform("name", "2"), inform("price", "1", "train")]
    text = " ".join(map(placeholders.placeholder, acts))
    assert text == "[restaurant_name] [restaurant_name_2] [train_price]"
    assert placeholders.placeholders_in(text) == acts
    assert placeholders.placeholders_in(f"{text} [restaurant_name]!") == acts, "each one once"
    values = {("restaurant", "name", "1"): "red house", ("restaurant", "area", "1"): ""}
    text = "[restaurant_name] is in the [restaurant_area]; [restaurant_name_2] is not."
    assert placeholders.filled(text, values) == "red house is in the [restaurant_area]; [restaurant_name_2] is not."


@pytest.mark.parametrize("text", ["", "name", "[name]", "[ ]", "[restaurant_]", "[_name]", "[]]", "[a_b_c]"])
def test_other_brackets_are_no_placeholders(text):
    assert placeholders.placeholders_in(text) == []
    assert placeholders.filled(text, {("restaurant", "name", "1"): "x"}) == text


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
def test_values_of_an_utterance_become_placeholders(text, acts, expected):
    assert placeholders.delexicalize(text, acts, "restaurant", TEMPLATES) == expected


@pytest.mark.parametrize("with_words", [True, False])
def test_words_of_templates_become_words_of_templates(with_words):
    acts = [inform("name", "thai north 0"), inform("food", "thai"), inform("phone", "00")]
    text = TEMPLATES.render(acts, "agent") if with_words else ""
    assert placeholders.delexicalize(text, acts, "restaurant", TEMPLATES) == (
        "There is a restaurant called [restaurant_name], serving [restaurant_food] food, with phone number "
        "[restaurant_phone]."
    )


MORE, GOODBYE = DialogueAct(REQ_MORE, GENERAL), DialogueAct(BYE, GENERAL)
NAME, FOOD, PHONE = (DialogueAct(INFORM, "restaurant", slot, "1") for slot in ("name", "food", "phone"))
BOOKED = DialogueAct(BOOK, "restaurant", REFERENCE, "1")


@cache
def world(name):
    return tiny_world() if name == "tiny" else town_guide(n_dialogues=40)


@cache
def reader(name):
    return placeholders.ReplyReader(world(name).templates)


def wanted(*slots, of="restaurant"):
    return [DialogueAct(REQUEST, of, slot) for slot in slots]


@pytest.mark.parametrize("name", ["tiny", "town_guide"])
def test_every_act_of_a_vocabulary_is_read_from_the_words_of_templates(name):
    for act in world(name).system_acts.acts:
        text = world(name).templates.render(placeholders.with_placeholders([act], act.domain), "agent")
        read = reader(name).read(text, act.domain)
        assert (read[-1].intent in BOOKS) if act.intent in BOOKS else read == [act], (text, read)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[restaurant_name] serves [restaurant_food] food.", [NAME, FOOD]),
        ("[restaurant_name]'s number is [restaurant_phone], is there anything else?", [NAME, PHONE, MORE]),
        ("What kind of food would you like?", wanted("food")),
        ("Would you like [restaurant_food] or [restaurant_food_2]?", wanted("food")),
        ("Do you have a preference for the area or type of food", wanted("area", "food")),
        ("There are no [restaurant_food] restaurants. Would you like another type of food?",
         [DialogueAct(NO_OFFER, "restaurant"), *wanted("food")]),
        ("I'm sorry, I couldn't find any.", [DialogueAct(NO_OFFER, "restaurant")]),
        ("No problem! The [restaurant_name] it is.", [NAME]),
        ("How about [restaurant_name]?", [NAME]),
        ("Would you like their phone number?", [MORE]),
        ("What day should I book?", wanted("day")),
        ("Booked. The reference is [restaurant_ref].", [BOOKED]),
        ("I have reserved a table at [restaurant_name].", [NAME, BOOKED]),
        ("I could not book a table on that day.", [DialogueAct(NO_BOOK, "restaurant")]),
        ("Shall I book [restaurant_name]?", [NAME._replace(intent=OFFER_BOOK)]),
        ("You're very welcome. Good bye!", [DialogueAct(WELCOME, GENERAL), GOODBYE]),
        ("Thank you and enjoy your meal", [GOODBYE, DialogueAct(THANK, GENERAL)]),
        ("[hotel_name] [restaurant_nonsense]", []),
        ("ba ba ba", []),
        ("", []),
    ],
)  # fmt: skip
def test_words_of_people_are_read(text, expected):
    assert reader("tiny").read(text, "restaurant") == expected


def test_a_noun_or_a_placeholder_changes_the_domain():
    read = reader("tiny").read("The [train_id] leaves at [train_leave]. What arrival time?", "restaurant")
    assert read == [
        *(DialogueAct(INFORM, "train", slot, "1") for slot in ("id", "leave")),
        *wanted("arrive", of="train"),
    ]
    assert reader("tiny").read("Is there a day for the restaurant?", "train") == wanted("day")
    assert reader("tiny").read("Booking is not possible.", "") == []


@given(st.text(alphabet="[]_ ?.,!n'taon2 restaurantnamebook", max_size=120))
def test_any_text_is_read_as_sayable_acts(text):
    found = reader("tiny").read(text, "restaurant")
    assert len(found) == len(set(found))
    ontology = world("tiny").ontology
    for act in found:
        assert act.domain == GENERAL or act.slot in (*ontology[act.domain].slots, "")
