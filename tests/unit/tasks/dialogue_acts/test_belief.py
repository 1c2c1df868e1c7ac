"""What the agent believes after each utterance."""

from __future__ import annotations

from worlds import ONTOLOGY

from rl4dialog.tasks.dialogue_acts.acts import DialogueAct
from rl4dialog.tasks.dialogue_acts.belief import BeliefState


def act(intent: str, slot: str = "", value: str = "") -> DialogueAct:
    return DialogueAct(intent, "restaurant", slot, value)


def test_constraints_bookings_and_requests_are_remembered() -> None:
    belief = BeliefState(ONTOLOGY)
    assert belief.active == ""
    belief.hear([act("inform", "food", "thai"), act("inform", "day", "monday"), act("request", "phone")])
    belief.hear([act("request", "phone"), act("request", "area"), DialogueAct("thank", "general")])
    about = belief.domains["restaurant"]
    assert about.constraints == {"food": "thai"} and about.booking == {"day": "monday"}
    assert about.requested == ["phone", "area"]
    assert belief.active == "restaurant"


def test_answers_offers_and_references_come_from_what_is_said() -> None:
    belief = BeliefState(ONTOLOGY)
    belief.hear([act("request", "phone"), act("request", "area")])
    belief.say([act("inform", "name", "wok"), act("inform", "phone", "1"), act("book", "ref", "X7")])
    about = belief.domains["restaurant"]
    assert about.requested == ["area"] and (about.offered, about.reference) == ("wok", "X7")


def test_new_constraint_ends_offer_and_booking_and_new_booking_value_the_reference() -> None:
    belief = BeliefState(ONTOLOGY)
    belief.hear([act("inform", "food", "thai"), act("inform", "day", "monday")])
    belief.say([act("inform", "name", "wok"), act("book", "ref", "X7")])
    about = belief.domains["restaurant"]
    belief.hear([act("inform", "food", "thai"), act("inform", "day", "monday")])
    assert (about.offered, about.reference) == ("wok", "X7"), "nothing has changed"
    belief.hear([act("inform", "day", "friday")])
    assert (about.offered, about.reference) == ("wok", "")
    belief.hear([act("inform", "food", "greek")])
    assert about.offered == ""


def test_unknown_domains_and_slots_are_ignored() -> None:
    belief = BeliefState(ONTOLOGY)
    belief.hear([DialogueAct("inform", "castle", "age", "9"), act("inform", "smell", "good")])
    assert belief.domains["restaurant"].constraints == {} and "castle" not in belief.domains
