"""ConvLab-2's rules: dialogues judged by hand, one per rule."""

from __future__ import annotations

from typing import Any

import pytest

from rl4dialog.tasks.dialogue_acts.acts import DialogueAct
from rl4dialog.tasks.dialogue_acts.dialogue import Booking, Exchange
from rl4dialog.tasks.dialogue_acts.goals import DomainGoal, Goal
from rl4dialog.tasks.dialogue_acts.ontology import Database, Domain, Ontology
from rl4dialog.tasks.dialogue_acts.outcome import (
    ConvLab2Reward,
    ConvLabOutcome,
    TaskTurn,
    convlab_outcome_of,
    resemblance,
)

ONTOLOGY = Ontology(
    [
        Domain("hotel", ("area", "stars"), ("address", "phone", "area", "stars"), bookable=("people",)),
        Domain(
            "train",
            ("departure", "arriveBy", "day"),
            ("duration", "arriveBy"),
            bookable=("people",),
            key="trainID",
            bounds={"arriveBy": "at most"},
        ),
        Domain("taxi", ("leaveAt",), ("car type",), key="car type", generated=("car type",)),
        Domain("shop", ("area",), ("phone",)),
    ]
)
DATABASE = Database(
    ONTOLOGY,
    {
        "hotel": [
            {"name": "acorn", "area": "north", "stars": "4", "phone": "01223353888", "address": "154 chesterton road"},
            {"name": "bridge", "area": "east", "stars": "4", "phone": "01223353942", "address": "15 hills road"},
        ],
        "train": [
            {"trainID": "tr1", "departure": "ely", "arriveBy": "10:00", "day": "monday", "duration": "17 minutes"},
            {"trainID": "tr2", "departure": "ely", "arriveBy": "12:00", "day": "monday", "duration": "17 minutes"},
        ],
        "taxi": [{"car type": "red ford"}],
        "shop": [{"name": "corner", "area": "mill end", "phone": "extension 7"}],
    },
)


def inform(domain: str, slot: str, value: str, intent: str = "inform") -> DialogueAct:
    return DialogueAct(intent, domain, slot, value)


def judged(
    domains: dict[str, DomainGoal], *said: DialogueAct, bookings: tuple[Booking, ...] = (), reply: Any = ()
) -> ConvLabOutcome:
    exchange = Exchange((), (), (), said, bookings)
    return convlab_outcome_of(Goal("g", domains), [exchange], True, DATABASE, reply)


def booked(domain: str, entity: str) -> Booking:
    return Booking(domain, entity, {"people": "2"}, "ABCD")


HOTEL = {"hotel": DomainGoal({"area": "north", "stars": "4"}, requests=("phone",))}
BOOKED = {"hotel": DomainGoal({"area": "north", "stars": "4"}, book={"people": "3"})}


def test_numbers_of_a_success() -> None:
    domains = {"hotel": DomainGoal({"area": "north"}, requests=("phone",), book={"people": "2"})}
    found = judged(domains, inform("hotel", "phone", "01223353888"), bookings=(booked("hotel", "acorn"),))
    assert found.numbers() == {
        "convlab2/success": 1,
        "convlab2/complete": 1,
        "convlab2/book": 1,
        "convlab2/inform_precision": 1,
        "convlab2/inform_recall": 1,
        "convlab2/inform_f1": 1,
    }


def test_numbers_without_requests_and_bookings_are_missing_and_the_goal_fails() -> None:
    found = judged({"hotel": DomainGoal({"area": "north"})}, inform("hotel", "name", "acorn"))
    assert found.numbers() == {"convlab2/success": 0, "convlab2/complete": 1}


@pytest.mark.parametrize("intent", ["inform", "recommend", "offerbook", "offerbooked"])
def test_a_request_is_answered_by_these_intents(intent: str) -> None:
    assert judged(HOTEL, inform("hotel", "phone", "01223353888", intent)).success


@pytest.mark.parametrize("intent", ["select", "book", "nooffer"])
def test_a_request_is_not_answered_by_others(intent: str) -> None:
    assert judged(HOTEL, inform("hotel", "phone", "01223353888", intent)).numbers()["convlab2/inform_recall"] == 0


def test_a_similar_value_of_another_entity_is_an_answer() -> None:
    assert judged(HOTEL, inform("hotel", "phone", "01223353942")).success  # 8 of 11 digits agree in order


def test_a_value_that_resembles_no_fitting_entity_is_no_success_though_recalled() -> None:
    found = judged(HOTEL, inform("hotel", "phone", "98765009999"))
    assert found.numbers()["convlab2/inform_recall"] == 1 and not found.success


@pytest.mark.parametrize(("slot", "value"), [("phone", "12345"), ("stars", "four"), ("area", "upstairs")])
def test_a_malformed_value_is_told_in_vain(slot: str, value: str) -> None:
    numbers = judged({"hotel": DomainGoal(requests=(slot, "address"))}, inform("hotel", slot, value)).numbers()
    assert numbers["convlab2/inform_recall"] == 0
    numbers = judged(HOTEL, inform("hotel", slot, value), inform("hotel", "phone", "01223353888")).numbers()
    assert numbers["convlab2/inform_precision"] == 0.5


def test_patterns_that_no_entity_fits_are_not_used() -> None:
    assert judged(
        {"shop": DomainGoal({"area": "mill end"}, requests=("phone",))}, inform("shop", "phone", "extension 7")
    ).success


def test_slots_that_were_not_requested_are_told_in_vain_unless_they_are_constraints() -> None:
    told = [inform("hotel", slot, value) for slot, value in {"phone": "01223353888", "area": "north"}.items()]
    assert judged(HOTEL, *told).numbers()["convlab2/inform_precision"] == 1
    domains = {"hotel": DomainGoal({"stars": "4"}, requests=("phone",))}
    assert judged(domains, *told).numbers()["convlab2/inform_precision"] == 0.5
    assert judged(domains, *told).numbers()["convlab2/inform_f1"] == pytest.approx(2 / 3)


def test_addresses_are_never_told_in_vain() -> None:
    told = [inform("hotel", "phone", "01223353888"), inform("hotel", "address", "15 hills road")]
    assert judged(HOTEL, *told).numbers()["convlab2/inform_precision"] == 1


def test_what_is_told_of_another_domain_is_told_in_vain() -> None:
    told = [inform("hotel", "phone", "01223353888"), inform("shop", "phone", "extension 7")]
    assert judged(HOTEL, *told).numbers()["convlab2/inform_precision"] == 0.5


def test_book_is_the_share_of_constraints_of_the_booked_entity() -> None:
    found = judged(BOOKED, bookings=(booked("hotel", "bridge"),))
    assert found.book == 0.5 and not found.success


def test_values_of_a_booking_are_not_compared() -> None:
    assert judged(BOOKED, bookings=(booked("hotel", "acorn"),)).success  # for 2 people, where 3 were asked for


def test_only_the_first_booking_counts() -> None:
    assert not judged(BOOKED, bookings=(booked("hotel", "bridge"), booked("hotel", "acorn"))).success


def test_no_booking_is_zero() -> None:
    assert judged(BOOKED, inform("hotel", "name", "acorn")).book == 0


def test_a_booking_without_constraints_is_not_judged() -> None:
    assert judged({"hotel": DomainGoal(book={"people": "2"})}).book is None


def test_the_final_constraints_count_though_the_first_were_never_refused() -> None:
    domains = {"hotel": DomainGoal({"area": "north"}, fail_info={"area": "east"}, book={"people": "2"})}
    assert judged(domains, bookings=(booked("hotel", "bridge"),)).book == 0


@pytest.mark.parametrize(("train", "match"), [("tr1", 1.0), ("tr2", 0.5)])
def test_times_are_bounds_and_the_ends_of_a_ride_are_not_compared(train: str, match: float) -> None:
    info = {"departure": "ely", "arriveBy": "11:00", "day": "monday"}
    assert judged({"train": DomainGoal(info, book={"people": "2"})}, bookings=(booked("train", train),)).book == match


def test_what_is_no_time_fits_every_time() -> None:
    domains = {"train": DomainGoal({"arriveBy": "noon"}, book={"people": "2"})}
    assert judged(domains, bookings=(booked("train", "tr2"),)).book == 1


def test_a_goal_that_no_entity_satisfies_fails() -> None:
    domains = {"hotel": DomainGoal({"area": "south"}, requests=("phone",))}
    found = judged(domains, inform("hotel", "phone", "01223353888"))
    assert found.domains["hotel"].success and not found.success


def test_a_taxi_needs_only_its_car() -> None:
    domains = {"taxi": DomainGoal({"leaveAt": "10:00"}, requests=("car type",))}
    assert judged(domains, inform("taxi", "car type", "red ford")).success


def test_resemblance_is_that_of_the_best_part() -> None:
    assert resemblance("Hills Road", "15 hills road") == 100
    assert resemblance("abcd", "xabczx") == 75
    assert resemblance("", "x") == 0


def reward_of(found: ConvLabOutcome) -> float:
    return ConvLab2Reward()(TaskTurn(Exchange((), (), (), ()), None, lambda: found))


def test_reward_pays_40_while_the_goal_is_reached() -> None:
    assert reward_of(judged(HOTEL, inform("hotel", "phone", "01223353888"))) == 40


def test_reward_pays_5_while_the_domain_of_the_last_act_is_a_success() -> None:
    domains = {**HOTEL, "taxi": DomainGoal(requests=("car type",))}
    told = inform("hotel", "phone", "01223353888")
    assert reward_of(judged(domains, told)) == 5
    assert reward_of(judged(domains, told, reply=[DialogueAct("bye", "general")])) == 5
    assert reward_of(judged(domains, told, reply=[DialogueAct("request", "taxi", "car type")])) == -1


def test_reward_charges_other_turns() -> None:
    assert reward_of(judged(HOTEL)) == -1


def test_reward_without_a_judge_is_an_error() -> None:
    with pytest.raises(ValueError, match="ConvLab2Reward needs a TaskTurn with 'convlab'"):
        ConvLab2Reward()(TaskTurn(Exchange((), (), (), ()), None))
