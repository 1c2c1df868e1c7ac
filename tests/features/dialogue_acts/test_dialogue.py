"""Belief, values and whole dialogues from the agent's side."""

import numpy as np
import pytest
from worlds import DATABASE, ONTOLOGY

from rl4dialog.features.dialogue_acts.tasks.acts import GENERAL, REQ_MORE, REQUEST, DialogueAct
from rl4dialog.features.dialogue_acts.tasks.agenda import AgendaUser, SemanticErrors
from rl4dialog.features.dialogue_acts.tasks.dialogue import (
    BeliefState,
    Lexicalizer,
    RulePolicy,
    corpus_dialogue,
    simulate,
)
from rl4dialog.features.dialogue_acts.tasks.goals import DomainGoal, Goal
from rl4dialog.features.dialogue_acts.tasks.ontology import Database, Domain, Ontology
from rl4dialog.features.dialogue_acts.tasks.templates import Templates


def act(intent, slot="", value=""):
    return DialogueAct(intent, "restaurant", slot, value)


def test_constraints_bookings_and_requests_are_remembered():
    belief = BeliefState(ONTOLOGY)
    assert belief.active == ""
    belief.hear([act("inform", "food", "thai"), act("inform", "day", "monday"), act("request", "phone")])
    belief.hear([act("request", "phone"), act("request", "area"), DialogueAct("thank", "general")])
    about = belief.domains["restaurant"]
    assert about.constraints == {"food": "thai"} and about.booking == {"day": "monday"}
    assert about.requested == ["phone", "area"]
    assert belief.active == "restaurant"


def test_answers_offers_and_references_come_from_what_is_said():
    belief = BeliefState(ONTOLOGY)
    belief.hear([act("request", "phone"), act("request", "area")])
    belief.say([act("inform", "name", "wok"), act("inform", "phone", "1"), act("book", "ref", "X7")])
    about = belief.domains["restaurant"]
    assert about.requested == ["area"] and (about.offered, about.reference) == ("wok", "X7")


def test_new_constraint_ends_offer_and_booking_and_new_booking_value_the_reference():
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


def test_booking_is_refused_once_whatever_is_said_of_it():
    wanted = DomainGoal({"food": "thai"}, {}, (), {"day": "friday", "people": "3"}, {"day": "monday"})
    belief = BeliefState(ONTOLOGY)
    said = {"food": "thai", "day": "monday", "people": "3"}
    belief.hear(DialogueAct("inform", "restaurant", slot, value) for slot, value in said.items())
    acts = [DialogueAct("book", "restaurant", slot, "1") for slot in ("name", "day", "ref")]
    found = Lexicalizer(DATABASE).say(acts, belief, Goal("1", {"restaurant": wanted}))
    assert found.acts == [DialogueAct("nobook", "restaurant")]
    assert not found.bookings and not found.n_unsayable


CAFE = Ontology([Domain("cafe", informable=("area",), requestable=("phone",))])
ENTITIES = [{"name": "red cup", "area": "north", "phone": "1"}, {"name": "blue cup", "area": "south", "phone": "2"}]
GOAL = Goal("1", {"cafe": DomainGoal({"area": "north"}, requests=("phone",))})


class Silent:
    def act(self, belief, heard):
        return [DialogueAct(REQ_MORE, GENERAL)]


@pytest.fixture
def lexicalizer():
    return Lexicalizer(Database(CAFE, {"cafe": ENTITIES}))


def rng(seed=0):
    return np.random.default_rng(seed)


def test_agent_hears_what_errors_leave(lexicalizer):
    deaf = SemanticErrors(1.0, Ontology([]), {})
    exchanges = simulate(Silent(), AgendaUser(CAFE), lexicalizer, GOAL, rng(), max_turns=2, errors=deaf)
    assert all(exchange.user and not exchange.heard for exchange in exchanges)


def test_corpus_has_what_was_understood_and_said_and_its_words(lexicalizer):
    exchanges = simulate(RulePolicy(lexicalizer), AgendaUser(CAFE), lexicalizer, GOAL, rng())
    plain = corpus_dialogue("7", GOAL, exchanges)
    assert (plain.id, plain.goal) == ("7", GOAL)
    assert plain.turns[0].user_text == plain.turns[0].system_text == ""
    worded = corpus_dialogue("7", GOAL, exchanges, Templates(Database(CAFE, {"cafe": ENTITIES})))
    last = worded.turns[-1]
    assert last.user == (DialogueAct(REQUEST, "cafe", "phone"),)
    assert last.user_text == "What is the phone number of the cafe?"
    assert last.system_text == "There is a cafe called red cup, with phone number 1."
