"""Goals drawn from the statistics of others."""

import functools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import DATABASE, tiny_world

from rl4dialog.core.errors import DataError
from rl4dialog.features.dialogue_acts.tasks.goals import DomainGoal, Goal, GoalStatistics, Shape, shape_of
from rl4dialog.features.dialogue_acts.tasks.ontology import satisfies
from rl4dialog.features.dialogue_acts.tasks.town_guide import town_guide

WORLD = tiny_world()
TABLE = DomainGoal({"food": "thai", "area": "north"}, {"food": "indian"}, ("phone",), {"day": "friday", "people": "2"})
TRAIN = DomainGoal({"to": "museum"}, requests=("leave",))


@functools.cache
def small_town():
    return town_guide(n_dialogues=40)


def statistics(goals, held_out=()):
    made = [Goal(str(i), domains) for i, domains in enumerate(goals)]
    return GoalStatistics(made, DATABASE, held_out, WORLD.templates)


def drawn(found, n, seed=0):
    rng = np.random.default_rng(seed)
    return [found.draw(rng)[0] for _ in range(n)]


def test_domains_slots_and_values_are_counted():
    cheap = DomainGoal(
        {"area": "north", "food": "greek"}, {"food": "indian"}, ("phone",), {"people": "2", "day": "friday"}
    )
    counted = statistics([{"restaurant": TABLE, "train": TRAIN}, {"restaurant": cheap}, {"train": TRAIN}])
    assert counted.combinations == {("restaurant", "train"): 1, ("restaurant",): 1, ("train",): 1}
    assert counted.shapes == {
        "restaurant": {Shape(("area", "food"), ("food",), ("day", "people"), (), ("phone",)): 2},
        "train": {Shape(("to",), (), (), (), ("leave",)): 2},
    }
    assert counted.values == {
        ("restaurant", "info", "food"): {"thai": 1, "greek": 1},
        ("restaurant", "info", "area"): {"north": 2},
        ("restaurant", "fail_info", "food"): {"indian": 2},
        ("restaurant", "book", "day"): {"friday": 2},
        ("restaurant", "book", "people"): {"2": 2},
        ("train", "info", "to"): {"museum": 2},
    }


def assert_same_shares(found, expected):
    n = found.total()
    assert found.keys() <= expected.keys()
    for item, count in expected.items():
        share = count / expected.total()
        assert abs(found[item] / n - share) <= 4 * math.sqrt(share * (1 - share) / n) + 1e-9, item


def test_statistics_of_drawn_goals_are_those_that_were_counted():
    world = small_town()
    counted, goals = world.goal_statistics, drawn(world.goal_statistics, 2000)
    assert_same_shares(Counter(tuple(goal.domains) for goal in goals), counted.combinations)
    for name, shapes in counted.shapes.items():
        of_domain = [goal.domains[name] for goal in goals if name in goal.domains]
        assert_same_shares(Counter(map(shape_of, of_domain)), shapes)
        if (name, "book", "people") in counted.values:  # which the database does not limit
            booked = Counter(wanted.book["people"] for wanted in of_domain if wanted.book)
            assert_same_shares(booked, counted.values[name, "book", "people"])
    known = {goal.key for goal in world.goals["train"]}
    assert sum(goal.key in known for goal in goals) < 0.2 * len(goals), "most goals are new"


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["tiny", "town_guide"]), st.integers(0, 10**6))
def test_drawn_goal_can_be_reached_and_is_not_one_of_evaluations(name, seed):
    world = WORLD if name == "tiny" else small_town()
    held_out = {goal.key for split in ("val", "test") for goal in world.goals[split]}
    for goal in drawn(world.goal_statistics, 10, seed):
        assert goal.key not in held_out and goal.text.startswith("You are looking for a")
        for domain, wanted in goal.domains.items():
            assert not wanted.fail_info.items() & wanted.info.items()
            assert not wanted.fail_book.items() & wanted.book.items()
            if not world.ontology[domain].generated:
                assert any_entity(world, domain, wanted.info)
                assert not wanted.fail_info or not any_entity(world, domain, wanted.first_info)


def any_entity(world, domain, constraints):
    spec = world.ontology[domain]
    return any(
        all(satisfies(spec, slot, entity.get(slot, ""), value) for slot, value in constraints.items())
        for entity in world.database.entities(domain)
    )


def test_goals_that_are_drawn_again_are_counted():
    greek, indian = (
        DomainGoal({"food": food, "area": area}) for food, area in (("greek", "north"), ("indian", "dontcare"))
    )
    wanted = [{"restaurant": greek}, {"restaurant": indian}]
    held_out = {Goal("", {"restaurant": greek}).key}
    counted, rng = statistics(wanted, held_out), np.random.default_rng(0)
    found = [counted.draw(rng) for _ in range(400)]
    assert {goal.domains["restaurant"].info["area"] for goal, _ in found} == {"dontcare"}
    assert {goal.domains["restaurant"].info["food"] for goal, _ in found} == {"greek"}
    mean = sum(n_again for _, n_again in found) / len(found)
    assert mean == pytest.approx(3, abs=0.5), "one of four pairs is accepted, so three others come before it"


def test_statistics_without_a_goal_to_draw_are_an_error():
    only = [{"train": TRAIN}]
    with pytest.raises(DataError, match=r"goals: statistics: all of 10,000 drawn goals are goals of val or test, too"):
        statistics(only, {Goal("", only[0]).key}).draw(np.random.default_rng(0))
    offered = [{"restaurant": DomainGoal({"food": "thai"}, {"food": "greek"})}]
    with pytest.raises(
        DataError,
        match=r"env\.args\.goals: statistics: domain 'restaurant': none of 10,000 goals with info food, fail_info food "
        r"can be reached .*use goals: corpus",
    ):
        statistics(offered).draw(np.random.default_rng(0))
