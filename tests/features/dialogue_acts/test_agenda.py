"""Semantic errors and the agenda-based user."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import DATABASE, ONTOLOGY, goals, tiny_world

from rl4dialog.features.dialogue_acts.tasks.acts import BYE, DONT_CARE, INFORM, REQUEST, DialogueAct
from rl4dialog.features.dialogue_acts.tasks.agenda import AgendaUser, SemanticErrors
from rl4dialog.features.dialogue_acts.tasks.dialogue import BeliefState, Lexicalizer
from rl4dialog.features.dialogue_acts.tasks.goals import DomainGoal, Goal
from rl4dialog.features.dialogue_acts.tasks.ontology import Domain, Ontology

VALUES = {"restaurant": {"food": ("thai", "greek", "indian"), "area": ("north",)}}
REQUESTS = Ontology([Domain("restaurant", (), ("phone", "address"))])
THAI = DialogueAct("inform", "restaurant", "food", "thai")
NORTH = DialogueAct("inform", "restaurant", "area", "north")
PHONE = DialogueAct("request", "restaurant", "phone")
GOODBYE = DialogueAct("bye", "general")


def heard(act, rate, n=4000):
    errors, rng = SemanticErrors(rate, REQUESTS, VALUES), np.random.default_rng(0)
    return [errors.understood([act], rng) for _ in range(n)]


def test_share_of_misunderstood_acts_is_the_rate_and_half_of_them_are_lost():
    found = heard(THAI, 0.2)
    assert np.mean([acts != [THAI] for acts in found]) == pytest.approx(0.2, abs=0.025)
    assert np.mean([not acts for acts in found]) == pytest.approx(0.1, abs=0.02)
    changed = {acts[0] for acts in found if acts and acts != [THAI]}
    assert changed == {THAI._replace(value="greek"), THAI._replace(value="indian")}


def test_request_becomes_another_request():
    changed = {acts[0] for acts in heard(PHONE, 0.5) if acts and acts != [PHONE]}
    assert changed == {PHONE._replace(slot="address")}
    assert {tuple(acts) for acts in heard(NORTH, 0.5)} == {(NORTH,), ()}


def test_goodbye_is_always_understood_and_rate_0_draws_nothing():
    assert all(acts == [GOODBYE] for acts in heard(GOODBYE, 1.0, 100))
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    assert SemanticErrors(0.0, REQUESTS, VALUES).understood([THAI, PHONE], rng) == [THAI, PHONE]
    assert rng.bit_generator.state == before


ACTS = tiny_world().system_acts.acts
MAX_ACTS = 3


def act(intent, domain, slot="", value=""):
    return DialogueAct(intent, domain, slot, value)


def user_of(goal, **kwargs):
    user = AgendaUser(ONTOLOGY, **kwargs)
    return user, user.reset(Goal("g", goal), np.random.default_rng(0))


REFUSALS = [act(intent, "restaurant") for intent in ("nooffer", "nobook")]
chosen_acts = st.lists(
    st.lists(st.sampled_from(ACTS) | st.sampled_from(REFUSALS), max_size=4, unique=True), min_size=5, max_size=25
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(goals()), chosen_acts, st.integers(0, 5))
def test_user_keeps_its_rules_whatever_the_agent_says(goal, turns, seed):
    user, belief, lexicalizer = AgendaUser(ONTOLOGY, MAX_ACTS), BeliefState(ONTOLOGY), Lexicalizer(DATABASE)
    said = user.reset(goal, np.random.default_rng(seed))
    answered = {name: set[str]() for name in goal.domains}
    told, answer = set[DialogueAct](), list[DialogueAct]()
    for chosen in turns:
        assert 0 < len(said) <= MAX_ACTS
        assert all(_is_allowed(each, goal) for each in said), said
        assert any(each.intent == BYE for each in said) == user.is_over
        for name, wanted in goal.domains.items():
            closed = set(wanted.requests) - set(user._open[name])
            assert closed >= answered[name]  # an answer is never lost
            answered[name] = closed
        if user.has_given_up:
            refused = {each.intent for each in answer}
            assert any(_second_wishes(goal, intent) <= told for intent in ("nooffer", "nobook") if intent in refused)
        if user.is_over:
            break
        told |= set(said)
        belief.hear(said)
        answer = lexicalizer.say(chosen, belief, goal).acts
        belief.say(answer)
        said = user.reply(answer)


def _second_wishes(goal, refusal):
    wanted = goal.domains["restaurant"]
    first, last = (wanted.fail_info, wanted.info) if refusal == "nooffer" else (wanted.fail_book, wanted.book)
    return {act(INFORM, "restaurant", slot, value) for slot, value in last.items() if first.get(slot, value) != value}


def _is_allowed(said, goal):
    if said.intent == BYE:
        return True
    if said.domain not in goal.domains:
        return False
    wanted, spec = goal.domains[said.domain], ONTOLOGY[said.domain]
    if said.intent == REQUEST:
        return said.slot in (*wanted.requests, spec.key)
    values = [each.get(said.slot) for each in (wanted.info, wanted.fail_info, wanted.book, wanted.fail_book)]
    place = said.domain == "taxi" and said.slot in ("from", "to")
    return said.intent == INFORM and (not said.slot or place or said.value in (*values, DONT_CARE))


def test_request_is_answered_in_the_next_turn():
    user, _ = user_of({"restaurant": DomainGoal({"food": "thai"}, requests=("phone",), book={"day": "monday"})})
    for slot, value in (("food", "thai"), ("day", "monday"), ("area", DONT_CARE)):
        assert act(INFORM, "restaurant", slot, value) in user.reply([act(REQUEST, "restaurant", slot)])


def test_contradiction_is_corrected_and_is_no_answer():
    user, _ = user_of({"restaurant": DomainGoal({"food": "thai"}, requests=("phone",))})
    wrong = [
        act(INFORM, "restaurant", slot, value) for slot, value in (("name", "x"), ("food", "greek"), ("phone", "1"))
    ]
    assert user.reply(wrong) == [act(INFORM, "restaurant", "food", "thai")]
    assert set(user.reply([])) == {act(REQUEST, "restaurant", "phone"), act(REQUEST, "restaurant", "name")}


@pytest.mark.parametrize("slots", [(), ("food", "area")])
def test_user_replaces_its_constraints_repeats_them_once_and_gives_up(slots):
    user, _ = user_of({"restaurant": DomainGoal({"food": "thai"}, {"food": "indian"}, ("phone",))})
    nothing = [act("nooffer", "restaurant"), *(act("nooffer", "restaurant", slot, "x") for slot in slots)]
    thai = [act(INFORM, "restaurant", "food", "thai")]
    assert [user.reply(nothing), user.reply(nothing)] == [thai, thai]
    assert not user.is_over
    assert user.reply(nothing)[-1].intent == BYE
    assert user.is_over
    assert not user.is_complete


def test_values_of_a_booking_are_replaced_after_no_booking():
    goal = DomainGoal({"food": "thai"}, {}, (), {"day": "friday", "people": "3"}, {"day": "monday"})
    user, _ = user_of({"restaurant": goal})
    asked = user.reply([act(INFORM, "restaurant", "name", "x")])
    assert act(INFORM, "restaurant", "day", "monday") in asked
    assert user.reply([act("nobook", "restaurant")]) == [act(INFORM, "restaurant", "day", "friday")]
    user, _ = user_of({"restaurant": DomainGoal({"food": "thai"}, {}, (), {"day": "friday", "people": "3"})})
    user.reply([act(INFORM, "restaurant", "name", "x")])
    booked = {"name": "x", "day": "monday", "people": "3", "ref": "AB"}
    reply = user.reply([act("book", "restaurant", slot, value) for slot, value in booked.items()])
    assert reply == [act(INFORM, "restaurant", "day", "friday")]
    assert not user.is_complete
    user.reply([act("book", "restaurant", slot, value) for slot, value in (booked | {"day": "friday"}).items()])
    assert user.is_complete
