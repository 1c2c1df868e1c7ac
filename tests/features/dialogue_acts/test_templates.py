"""Acts in words and back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl4dialog.features.dialogue_acts.tasks.acts import BOOKING, DONT_CARE, GENERAL, INFORM, REQUEST, DialogueAct
from rl4dialog.features.dialogue_acts.tasks.camrest import ONTOLOGY
from rl4dialog.features.dialogue_acts.tasks.goals import DomainGoal, Goal
from rl4dialog.features.dialogue_acts.tasks.ontology import Database
from rl4dialog.features.dialogue_acts.tasks.templates import Templates, Words
from rl4dialog.features.dialogue_acts.tasks.town_guide import town_guide
from rl4dialog.features.dialogue_acts.tasks.world import CorpusDialogue, CorpusTurn, make_world

# Values with what separates sentences, items and nouns.
VENUES = [
    {"name": "st. anna's, the restaurant", "food": "modern european", "pricerange": "cheap", "area": "north",
     "address": "finders corner, mill road and bridge street", "phone": "01223 000111", "postcode": "c.b 1, 2 q.a"},
    {"name": "fork and spoon", "food": "asian oriental", "pricerange": "moderate", "area": "centre",
     "address": "12 mill road city centre", "phone": "01223 000222", "postcode": "c.b 3, 0 a.d"},
    {"name": "thai", "food": "thai", "pricerange": "expensive", "area": "south",
     "address": "?", "phone": "?", "postcode": "c.b"},
]  # fmt: skip


def act(intent, domain, slot="", value=""):
    return DialogueAct(intent, domain, slot, value)


def venues():
    slots = ("food", "pricerange", "area", "name", "phone", "address", "postcode")
    system = [act(INFORM, "restaurant", slot, number) for slot in slots for number in ("1", "2")]
    system += [act(REQUEST, "restaurant", slot) for slot in slots] + [act("nooffer", "restaurant")]
    turns = (CorpusTurn((), tuple(system)), CorpusTurn((act("thank", GENERAL),), (act("welcome", GENERAL),)))
    dialogue = CorpusDialogue("1", turns, Goal("1", {"restaurant": DomainGoal({"food": "thai"})}))
    return make_world("venues", Database(ONTOLOGY, {"restaurant": VENUES}), {"train": [dialogue]})


WORLDS = {"venues": venues(), "town_guide": town_guide(n_dialogues=80)}
TOWN = WORLDS["town_guide"].templates


def values_of(world, domain, slot):
    values = {entity[slot] for entity in world.database.entities(domain) if slot in entity}
    return sorted(values | {*world.values[domain].get(slot, ())}) or ["8F00BA12" if slot == "ref" else "7"]


def all_acts(world):

    def with_values(acts):
        for each in acts:
            values = values_of(world, each.domain, each.slot) if each.value else [""]
            yield from (each._replace(value=value) for value in values)

    return {
        "user": list(dict.fromkeys(with_values(world.user_acts.acts))),
        "agent": list(dict.fromkeys(with_values(world.system_acts.acts))),
    }


@pytest.mark.parametrize("side", ["user", "agent"])
@pytest.mark.parametrize("name", ["venues", "town_guide"])
def test_every_act_comes_back(name, side):
    words, acts = WORLDS[name].templates, all_acts(WORLDS[name])[side]
    assert len(acts) > 15
    wrong = {each: words.render([each], side) for each in acts if words.parse(words.render([each], side)) != [each]}
    assert not wrong


@settings(max_examples=150, deadline=None)
@given(data=st.data(), name=st.sampled_from(["venues", "town_guide"]), side=st.sampled_from(["user", "agent"]))
def test_several_acts_come_back_in_their_order(data, name, side):
    words = WORLDS[name].templates
    said = data.draw(st.lists(st.sampled_from(all_acts(WORLDS[name])[side]), max_size=6, unique=True))
    assert words.parse(words.render(said, side)) == said


@pytest.mark.parametrize(
    ("acts", "side", "text"),
    [
        ([act(INFORM, "restaurant", "food", "thai"), act(INFORM, "restaurant", "area", DONT_CARE)], "user",
         "I am looking for a restaurant serving thai food, with any area."),
        ([act(INFORM, "hotel", "day", "friday"), act(INFORM, "hotel", "stay", "2")], "user",
         "Please book a hotel on friday, for 2 nights."),
        ([act(REQUEST, "hotel", "phone"), act(REQUEST, "hotel", "address")], "user",
         "What is the phone number and the address of the hotel?"),
        ([act(REQUEST, "taxi", "to")], "agent", "Tell me the destination of the taxi."),
        ([act("nooffer", "sight", "type", "park")], "agent", "There is no sight of type park."),
        ([act("bye", GENERAL)], "user", "Goodbye."),
        ([act("confirm", "sight", "type", "park")], "agent", "sight-confirm(type=park)"),
        ([act(INFORM, BOOKING, "day", "friday")], "agent", "There is a booking on friday."),
    ],
)  # fmt: skip
def test_acts_in_words(acts, side, text):
    assert TOWN.render(acts, side) == text
    assert TOWN.parse(text) == acts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i want a CHEAP italian restaurant in the north", {"price": "cheap", "food": "italian", "area": "north"}),
        ("I'm looking for a place to eat in the center", {"area": "centre"}),
        ("A restaurant, any area, serving thai food please", {"area": DONT_CARE, "food": "thai"}),
        ("a moderately priced restaurant", {"price": "moderate"}),
        ("I would like a restaurant in the expensiv price range", {"price": "expensive"}),
        ("book the restaurant for 4 people on friday at 18:15", {"people": "4", "day": "friday", "time": "18:15"}),
    ],
)
def test_people_need_not_know_the_templates(text, expected):
    found = TOWN.parse(text)
    assert {each.slot: each.value for each in found} == expected
    assert {each[:2] for each in found} == {(INFORM, "restaurant")}


@pytest.mark.parametrize("text", ["What is the phone number of the hotel?", "can i have the hotel's phone number"])
def test_phrasings_of_a_question(text):
    assert TOWN.parse(text) == [act(REQUEST, "hotel", "phone")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("west", ("area", "west")),
        ("I don't care.", ("area", DONT_CARE)),
        ("any", ("area", DONT_CARE)),
        ("with any price range", ("price", DONT_CARE)),
    ],
)
def test_short_answers_are_about_what_was_asked(text, expected):
    asked = [act(REQUEST, "hotel", "area")]
    assert TOWN.parse(text, asked) == [act(INFORM, "hotel", *expected)]


def test_sentences_without_a_domain_are_about_the_last_one():
    found = TOWN.parse("I want a hotel. In the north, of type inn. What is the address?")
    assert found == [
        act(INFORM, "hotel"),
        act(INFORM, "hotel", "area", "north"),
        act(INFORM, "hotel", "type", "inn"),
        act(REQUEST, "hotel", "address"),
    ]


@pytest.mark.parametrize("text", ["", "  ", "...", "The weather is fine today.", "cheap", "blah, blah and blah?"])
def test_text_without_an_act_gives_none(text):
    assert TOWN.parse(text) == []


def test_two_slots_with_the_same_words_stay_apart():
    world = WORLDS["town_guide"]
    same = {"phone": Words(("code",), "with code {}"), "postcode": Words(("code",), "with code {}")}
    words = Templates(world.database, world.values, same)
    assert words.noun("sight", "phone") == "code"
    assert words.noun("sight", "postcode") == "postcode"


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text_can_be_parsed(text):
    assert isinstance(TOWN.parse(text, [act(REQUEST, "hotel", "area")]), list)
