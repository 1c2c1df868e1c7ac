"""The generated town, its goals and its world."""

import statistics

import numpy as np
import pytest

from rl4dialog.features.dialogue_acts.tasks.acts import DONT_CARE, INFORM, REQUEST, DialogueAct
from rl4dialog.features.dialogue_acts.tasks.agenda import AgendaUser
from rl4dialog.features.dialogue_acts.tasks.dialogue import RulePolicy
from rl4dialog.features.dialogue_acts.tasks.environment import DialogueActEnv
from rl4dialog.features.dialogue_acts.tasks.goals import DomainGoal, Goal, goal_text, problems
from rl4dialog.features.dialogue_acts.tasks.templates import Templates
from rl4dialog.features.dialogue_acts.tasks.town_guide import (
    HOTEL,
    RESTAURANT,
    TAXI,
    WORDS,
    draw_goals,
    make_town,
    town_guide,
)


@pytest.fixture(scope="module")
def database():
    return make_town(np.random.default_rng(0))


@pytest.fixture(scope="module")
def goals(database):
    return draw_goals(np.random.default_rng(1), database, 600, Templates(database, words=WORDS))


def share(goals, of):
    assert callable(of)
    wanted = [each for goal in goals for each in goal.domains.values()]
    return sum(bool(of(each)) for each in wanted) / len(wanted)


def test_every_goal_can_be_reached(goals, database):
    assert [problem for goal in goals for problem in problems(goal, database)] == []


def test_first_constraints_fail_in_a_share_of_goals(goals, database):
    assert 0.08 < share(goals, lambda wanted: wanted.fail_info) < 0.3
    for goal in goals:
        for name, wanted in goal.domains.items():
            assert not wanted.fail_info or not database.query(name, wanted.first_info)
            assert all(wanted.info[slot] != value for slot, value in wanted.fail_info.items())


def test_bookings_of_a_goal_have_the_same_day_and_people(goals):
    booked = [
        [wanted.book for wanted in goal.domains.values() if wanted.book]
        for goal in goals
        if {RESTAURANT, HOTEL} <= set(goal.domains)
    ]
    pairs = [books for books in booked if len(books) == 2]
    assert pairs
    assert all(first["day"] == second["day"] and first["people"] == second["people"] for first, second in pairs)


def test_taxi_arrives_when_the_table_is_booked(goals):
    rides = [goal for goal in goals if TAXI in goal.domains and goal.domains.get(RESTAURANT, DomainGoal()).book]
    assert rides
    for goal in rides:
        ride, table = goal.domains[TAXI].info, goal.domains[RESTAURANT].book["time"]
        assert ride.get("arrive") == table if len(goal.domains) > 2 else ride["leave"] > table
    rides = [goal for goal in goals if TAXI in goal.domains]
    ends = [
        (goal, value) for goal in rides for slot, value in goal.domains[TAXI].info.items() if slot in ("from", "to")
    ]
    assert ends
    assert all(any(wanted.info.get("name") == end for wanted in goal.domains.values()) for goal, end in ends)


def test_goal_in_words(database):
    wanted = DomainGoal(
        {"food": "thai", "area": "north"},
        {"food": "greek"},
        ("phone", "address"),
        {"day": "friday", "time": "18:00", "people": "4"},
        {"time": "19:00"},
    )
    assert goal_text({RESTAURANT: wanted}, Templates(database, words=WORDS)) == (
        "You are looking for a restaurant serving greek food, in the north. If there is none, look for one serving "
        "thai food instead. Ask about the phone number and the address. Book it on friday, at 19:00, for 4 people. If "
        "that is not possible, book it at 18:00 instead."
    )


@pytest.fixture(scope="module")
def world():
    return town_guide()


def act(intent, domain, slot="", value=""):
    return DialogueAct(intent, domain, slot, value)


def success(n, error_rate=0.0, told=0):
    env = DialogueActEnv(town_guide, error_rate=error_rate)
    policy = RulePolicy(env.lexicalizer, told=told)
    goals = (*env.world.goals["test"], *env.world.goals["val"], *env.world.goals["train"])
    return statistics.mean(play(env, policy, goal, seed) for seed, goal in enumerate(goals[:n]))


def play(env, policy, goal, seed=0):
    env.reset(seed=seed, options={"goal": goal})
    while True:
        action = env.world.system_acts.encode(policy.act(env.dialogue.belief, env.dialogue.heard))
        _, _, terminated, _, info = env.step(action)
        if terminated:
            return bool(info["is_success"])


def test_same_seed_gives_the_same_world(world):
    same, other = town_guide(), town_guide(seed=1)
    assert (same.dialogues, same.fingerprint) == (world.dialogues, world.fingerprint)
    assert other.dialogues != world.dialogues and other.database.entities("hotel") != world.database.entities("hotel")


def test_corpus_is_not_perfect(world):
    noisy = statistics.mean(len(dialogue.turns) for dialogue in world.dialogues["train"])
    clean = statistics.mean(len(dialogue.turns) for dialogue in town_guide(noise=0.0).dialogues["train"])
    assert clean + 0.1 < noisy < clean + 3


def test_repeated_constraints_help_against_errors():
    plain, careful = success(300, 0.15), success(300, 0.15, told=3)
    assert plain < 0.8 < careful < 0.95
    assert success(300, 0.3, told=3) < careful


def ride(world, **info):
    hotel, restaurant = (world.database.entities(name)[0]["name"] for name in ("hotel", "restaurant"))
    goal = Goal(
        "1",
        {
            "hotel": DomainGoal({"area": "north"}),
            "restaurant": DomainGoal({"area": "north"}),
            "taxi": DomainGoal({"arrive": "19:00", **info}, requests=("phone",)),
        },
    )
    user = AgendaUser(world.ontology, places=world.places)
    user.reset(goal, np.random.default_rng(0))
    assert user.reply([act(INFORM, "hotel", "name", hotel)]) == [act(INFORM, "restaurant", "area", "north")]
    first = user.reply([act(INFORM, "restaurant", "name", restaurant)])
    assert {each.slot for each in first} == {"arrive", *info}
    return user, goal


def test_taxi_goes_between_the_places_that_were_found(world):
    hotel, restaurant = (world.database.entities(name)[0]["name"] for name in ("hotel", "restaurant"))
    user, _ = ride(world)
    assert user.reply([act(REQUEST, "taxi", "from")]) == [act(INFORM, "taxi", "from", hotel)]
    assert user.reply([act(REQUEST, "taxi", "to")]) == [act(INFORM, "taxi", "to", restaurant)]
    assert user.reply([act(REQUEST, "taxi", "leave")]) == [act(INFORM, "taxi", "leave", DONT_CARE)]
    user, _ = ride(world, to=hotel)
    assert user.reply([act(REQUEST, "taxi", "from")]) == [act(INFORM, "taxi", "from", restaurant)]


def test_end_of_a_ride_is_any_other_place_when_none_was_found(world):
    user = AgendaUser(world.ontology, places=world.places)
    user.reset(Goal("1", {"taxi": DomainGoal({"leave": "09:00"})}), np.random.default_rng(0))
    start, end = (user.reply([act(REQUEST, "taxi", slot)])[0].value for slot in ("from", "to"))
    assert start != end
    assert {start, end} <= set(world.places["taxi"]["to"])


def test_offer_before_the_user_came_to_the_domain_does_not_count(world):
    goal = Goal(
        "1", {"hotel": DomainGoal({"area": "north"}), "taxi": DomainGoal({"leave": "09:00"}, requests=("phone",))}
    )
    user = AgendaUser(world.ontology, places=world.places)
    user.reset(goal, np.random.default_rng(0))
    user.reply([act(INFORM, "taxi", "car", "red van"), act(INFORM, "taxi", "phone", "1")])
    user.reply([act(INFORM, "hotel", "name", "x")])
    assert not user.is_complete
    assert user.reply([]) == [act(REQUEST, "taxi", "phone"), act(REQUEST, "taxi", "car")]


def test_ride_to_another_place_than_the_user_said_is_a_failure(world):
    env = DialogueActEnv(town_guide)
    goal = Goal("1", {"taxi": DomainGoal({"leave": "09:00"}, requests=("phone",))})
    policy = RulePolicy(env.lexicalizer)
    assert play(env, policy, goal)
    env.reset(seed=0, options={"goal": goal})
    for _ in range(2):
        env.step(world.system_acts.encode(policy.act(env.dialogue.belief, env.dialogue.heard)))
    env.dialogue.belief.domains["taxi"].constraints["to"] = "nowhere"
    _, _, is_over, _, info = env.step(world.system_acts.encode(policy.act(env.dialogue.belief, env.dialogue.heard)))
    assert is_over and not info["is_success"]
    assert env.outcome().domains["taxi"].failures == ["wrong taxi: to"]


def test_rule_policy_succeeds():
    assert success(300) >= 0.97
