"""A small world for tests of task-oriented dialogue: restaurants that are booked, trains with times, and taxis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rl4dialog.tasks.dialogue_acts.acts import DialogueAct
from rl4dialog.tasks.dialogue_acts.agenda import AgendaUser
from rl4dialog.tasks.dialogue_acts.belief import BeliefState
from rl4dialog.tasks.dialogue_acts.corpus import CorpusDialogue, CorpusTurn
from rl4dialog.tasks.dialogue_acts.database import Database
from rl4dialog.tasks.dialogue_acts.goals import DomainGoal, Goal
from rl4dialog.tasks.dialogue_acts.lexicalizer import Lexicalizer
from rl4dialog.tasks.dialogue_acts.ontology import Domain, Ontology
from rl4dialog.tasks.dialogue_acts.outcome import Exchange
from rl4dialog.tasks.dialogue_acts.rule_policy import RulePolicy
from rl4dialog.tasks.dialogue_acts.world import World, make_world

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


def goals() -> list[Goal]:
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


def play(
    act: Callable[[BeliefState, list[DialogueAct]], list[DialogueAct]],
    goal: Goal,
    seed: int = 0,
    max_turns: int = 20,
) -> tuple[AgendaUser, list[Exchange]]:
    """Let an agent talk to the simulated user."""
    user, belief, lexicalizer = AgendaUser(ONTOLOGY), BeliefState(ONTOLOGY), Lexicalizer(ONTOLOGY, DATABASE)
    said_by_user, exchanges = user.reset(goal, np.random.default_rng(seed)), []
    while not user.is_over and len(exchanges) < max_turns:
        belief.hear(said_by_user)
        chosen = act(belief, said_by_user)
        said = lexicalizer.say(chosen, belief, goal)
        belief.say(said.acts)
        exchanges.append(
            Exchange(tuple(said_by_user), tuple(said_by_user), tuple(chosen), tuple(said.acts), tuple(said.bookings))
        )
        said_by_user = user.reply(said.acts)
    return user, exchanges


def rule_policy() -> RulePolicy:
    """The rule policy of this world."""
    return RulePolicy(ONTOLOGY, Lexicalizer(ONTOLOGY, DATABASE), many=3)


def tiny_world() -> World:
    """The world, with a corpus of the rule policy."""
    act, all_goals = rule_policy().act, goals()
    dialogues = [
        CorpusDialogue(goal.id, tuple(CorpusTurn(turn.user, turn.said) for turn in play(act, goal, seed)[1]), goal)
        for seed, goal in enumerate(all_goals)
    ]
    return make_world(
        "tiny", ONTOLOGY, DATABASE, {"train": dialogues[::2], "val": dialogues[1::4], "test": dialogues[3::4]}
    )
