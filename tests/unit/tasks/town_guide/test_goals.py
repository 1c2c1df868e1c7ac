"""Goals of visitors."""

from __future__ import annotations

import numpy as np
import pytest

from rl4dialog.tasks.dialogue_acts.database import Database
from rl4dialog.tasks.dialogue_acts.goals import DomainGoal, Goal, goal_of, goal_text, problems
from rl4dialog.tasks.dialogue_acts.templates import Templates
from rl4dialog.tasks.town_guide.goals import draw_goals
from rl4dialog.tasks.town_guide.town import HOTEL, ONTOLOGY, RESTAURANT, TAXI, WORDS, make_town


@pytest.fixture(scope="module")
def database() -> Database:
    return make_town(np.random.default_rng(0))


@pytest.fixture(scope="module")
def goals(database: Database) -> list[Goal]:
    return draw_goals(np.random.default_rng(1), database, 600, Templates(ONTOLOGY, database, words=WORDS))


def share(goals: list[Goal], of: object) -> float:
    assert callable(of)
    wanted = [each for goal in goals for each in goal.domains.values()]
    return sum(bool(of(each)) for each in wanted) / len(wanted)


def test_every_goal_can_be_reached(goals: list[Goal], database: Database) -> None:
    assert [problem for goal in goals for problem in problems(goal, ONTOLOGY, database)] == []


def test_no_two_goals_are_alike(goals: list[Goal]) -> None:
    assert len({repr(goal.domains) for goal in goals}) == len({goal.id for goal in goals}) == 600


def test_goals_have_one_to_three_domains(goals: list[Goal]) -> None:
    sizes = [len(goal.domains) for goal in goals]
    assert {1, 2, 3} == set(sizes)
    assert {name for goal in goals for name in goal.domains} == set(ONTOLOGY.domains)


def test_first_constraints_fail_in_a_share_of_goals(goals: list[Goal], database: Database) -> None:
    assert 0.08 < share(goals, lambda wanted: wanted.fail_info) < 0.3
    for goal in goals:
        for name, wanted in goal.domains.items():
            assert not wanted.fail_info or not database.query(name, wanted.first_info)
            assert all(wanted.info[slot] != value for slot, value in wanted.fail_info.items())


def test_desk_refuses_a_share_of_bookings(goals: list[Goal]) -> None:
    assert 0.03 < share(goals, lambda wanted: wanted.fail_book) < 0.2
    for goal in goals:
        for wanted in goal.domains.values():
            assert all(wanted.book[slot] != value for slot, value in wanted.fail_book.items())


def test_bookings_of_a_goal_have_the_same_day_and_people(goals: list[Goal]) -> None:
    booked = [
        [wanted.book for wanted in goal.domains.values() if wanted.book]
        for goal in goals
        if {RESTAURANT, HOTEL} <= set(goal.domains)
    ]
    pairs = [books for books in booked if len(books) == 2]
    assert pairs
    assert all(first["day"] == second["day"] and first["people"] == second["people"] for first, second in pairs)


def test_domains_of_a_goal_often_share_their_area(goals: list[Goal]) -> None:
    areas = [[each.info["area"] for each in goal.domains.values() if "area" in each.info] for goal in goals]
    pairs = [found for found in areas if len(found) > 1]
    assert sum(found[0] == found[1] for found in pairs) / len(pairs) > 0.5


def test_taxi_arrives_when_the_table_is_booked(goals: list[Goal]) -> None:
    rides = [goal for goal in goals if TAXI in goal.domains and goal.domains.get(RESTAURANT, DomainGoal()).book]
    assert rides
    for goal in rides:
        ride, table = goal.domains[TAXI].info, goal.domains[RESTAURANT].book["time"]
        assert ride.get("arrive") == table if len(goal.domains) > 2 else ride["leave"] > table


def test_ends_of_a_ride_are_names_that_the_goal_has(goals: list[Goal]) -> None:
    rides = [goal for goal in goals if TAXI in goal.domains]
    ends = [
        (goal, value) for goal in rides for slot, value in goal.domains[TAXI].info.items() if slot in ("from", "to")
    ]
    assert ends
    assert all(any(wanted.info.get("name") == end for wanted in goal.domains.values()) for goal, end in ends)


def test_goal_survives_json(goals: list[Goal]) -> None:
    assert [goal_of(goal.to_json(), ONTOLOGY, "here") for goal in goals[:50]] == goals[:50]


def test_goal_in_words(database: Database) -> None:
    wanted = DomainGoal(
        {"food": "thai", "area": "north"},
        {"food": "greek"},
        ("phone", "address"),
        {"day": "friday", "time": "18:00", "people": "4"},
        {"time": "19:00"},
    )
    assert goal_text({RESTAURANT: wanted}, Templates(ONTOLOGY, database, words=WORDS)) == (
        "You are looking for a restaurant serving greek food, in the north. If there is none, look for one serving "
        "thai food instead. Ask about the phone number and the address. Book it on friday, at 19:00, for 4 people. If "
        "that is not possible, book it at 18:00 instead."
    )
