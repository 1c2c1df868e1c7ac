"""A small world for tests of task-oriented dialogue: restaurants that are booked, trains with times, and taxis."""

import numpy as np

from rl4dialog.features.dialogue_acts.tasks.agenda import AgendaUser
from rl4dialog.features.dialogue_acts.tasks.dialogue import Lexicalizer, RulePolicy, corpus_dialogue, simulate
from rl4dialog.features.dialogue_acts.tasks.goals import DomainGoal, Goal
from rl4dialog.features.dialogue_acts.tasks.ontology import Database, Domain, Ontology
from rl4dialog.features.dialogue_acts.tasks.world import make_world

ONTOLOGY = Ontology(
    [
        Domain("restaurant", ("food", "area"), ("phone", "area", "ref"), bookable=("day", "people")),
        Domain("train", ("to", "arrive"), ("leave", "price"), (), "id", {"arrive": "at most"}, times=("leave",)),
        Domain(
            "taxi",
            ("from", "to"),
            ("car", "phone"),
            key="car",
            generated=("car", "phone"),
            required=(("from",), ("to",)),
        ),
    ],
    {"center": "centre"},
)
FOODS, AREAS, PLACES = ("thai", "greek", "indian"), ("north", "centre"), ("harbour", "museum")
DATABASE = Database(
    ONTOLOGY,
    {
        "restaurant": [
            {"name": f"{food} {area} {i}", "food": food, "area": area, "phone": f"{n}{i}"}
            for n, (food, area) in enumerate((food, area) for food in FOODS[:2] for area in AREAS)
            for i in range(2)
        ],
        "train": [
            {
                "id": f"tr{i}",
                "to": place,
                "arrive": f"{i + 9:02d}:30",
                "leave": f"{i + 8:02d}:05",
                "price": f"{i} pounds",
            }
            for i, place in enumerate(PLACES * 3)
        ],
        "taxi": [{"car": "red volvo", "phone": "111"}, {"car": "blue ford", "phone": "222"}],
    },
)


def goals():
    """Goals of all kinds, each of which can be reached."""
    found = []
    for food in FOODS[:2]:
        for area in (*AREAS, "dontcare"):
            info = {"food": food, "area": area}
            found.append({"restaurant": DomainGoal(info, requests=("phone",))})
            found.append({"restaurant": DomainGoal(info, {"food": "indian"}, ("phone", "area"))})
            booked = DomainGoal(info, {}, ("ref",), {"day": "monday", "people": "2"})
            found.append(
                {"restaurant": booked, "train": DomainGoal({"to": "museum", "arrive": "12:00"}, requests=("leave",))}
            )
            refused = DomainGoal(info, {}, ("phone",), {"day": "friday", "people": "3"}, {"day": "monday"})
            found.append({"restaurant": refused})
    for start, end in (PLACES, PLACES[::-1]):
        found.append({"taxi": DomainGoal({"from": start, "to": end}, requests=("phone", "car"))})
    return [Goal(str(i), domains) for i, domains in enumerate(found)]


def play(policy, goal, seed=0, max_turns=20):
    """Let an agent talk to the simulated user."""
    user, lexicalizer = AgendaUser(ONTOLOGY), Lexicalizer(DATABASE)
    return user, simulate(policy, user, lexicalizer, goal, np.random.default_rng(seed), max_turns)


def rule_policy():
    """The rule policy of this world."""
    return RulePolicy(Lexicalizer(DATABASE), many=3)


def tiny_world():
    """The world, with a corpus of the rule policy."""
    dialogues = [
        corpus_dialogue(goal.id, goal, play(rule_policy(), goal, seed)[1]) for seed, goal in enumerate(goals())
    ]
    return make_world("tiny", DATABASE, {"train": dialogues[::2], "val": dialogues[1::4], "test": dialogues[3::4]})
