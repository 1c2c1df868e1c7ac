"""The town guide, a task in dialogue acts without files: a generated town, goals of visitors, and simulated dialogues.

All names are made up. Every goal is drawn around entities of the town, so its final constraints can always be
satisfied. The domains of a goal share one trip: its day, its number of people and, more often than not, its area and
price. Which place the agent will offer is not known in advance, so a ride has the name of a place as an end only where
the goal itself names that place. The agent asks for the other ends, and the user answers with a place that it was
offered (`AgendaUser`). A taxi arrives when the table is booked, or leaves after dinner.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from rl4dialog.core.arguments import Fraction
from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.data.pool import SPLITS
from rl4dialog.features.dialogue_acts.tasks.acts import GENERAL, INFORM, REQ_MORE, REQUEST, DialogueAct
from rl4dialog.features.dialogue_acts.tasks.agenda import AgendaUser
from rl4dialog.features.dialogue_acts.tasks.dialogue import (
    BeliefState,
    Lexicalizer,
    RulePolicy,
    corpus_dialogue,
    simulate,
)
from rl4dialog.features.dialogue_acts.tasks.goals import DomainGoal, Goal, goal_text
from rl4dialog.features.dialogue_acts.tasks.ontology import CHOICE, Database, Entity, Ontology
from rl4dialog.features.dialogue_acts.tasks.templates import Templates, Words
from rl4dialog.features.dialogue_acts.tasks.world import CorpusDialogue, World, make_world

RESTAURANT, HOTEL, SIGHT, TAXI = "restaurant", "hotel", "sight", "taxi"
_TABLE = packaged_yaml(Path(__file__).with_suffix(".yaml"))
ONTOLOGY = Ontology.of(_TABLE)
WORDS = {name: Words(tuple(nouns), *phrase) for name, (nouns, *phrase) in _TABLE["words"].items()}
"""Words of domains and slots, where the usual ones do not fit; see `templates`."""


def _times(hours: Iterable[int]) -> list[str]:
    return [f"{hour:02d}:{minute:02d}" for hour in hours for minute in (0, 15, 30, 45)]


BOOKING_VALUES: dict[str, list[str]] = {**_TABLE["booking"], "time": _times(range(12, 21))}


def make_town(rng: np.random.Generator, n_restaurants: int = 40, n_hotels: int = 30, n_sights: int = 30) -> Database:
    return Database(
        ONTOLOGY,
        {
            RESTAURANT: [
                {"name": name, "food": _drawn(rng, "food"), "price": _drawn(rng, "price"), **_site(rng)}
                for name in _names(rng, "first_word", "table", n_restaurants)
            ],
            HOTEL: [
                {
                    **{"name": name, "type": _drawn(rng, "lodging"), "stars": str(rng.integers(1, 6))},
                    **{"price": _drawn(rng, "price"), "parking": _drawn(rng, "yes_or_no")},
                    **{"internet": _drawn(rng, "yes_or_no"), **_site(rng)},
                }
                for name in _names(rng, "first_word", "bed", n_hotels)
            ],
            SIGHT: [
                {
                    **{"name": name, "type": name.split()[-1], "fee": _drawn(rng, "fee")},
                    **{"hours": _drawn(rng, "hours"), **_site(rng)},
                }
                for name in _names(rng, "founder", "sight", n_sights)
            ],
            TAXI: [
                {"car": f"{colour} {car}", "phone": _phone(rng)}
                for colour, car in itertools.product(_TABLE["colour"], _TABLE["car"])
            ],
        },
    )


def places_of(database: Database) -> dict[str, dict[str, tuple[str, ...]]]:
    """Names of all places, as the ends of a taxi ride."""
    names = tuple(entity["name"] for name in (RESTAURANT, HOTEL, SIGHT) for entity in database.entities(name))
    return {TAXI: {"from": names, "to": names}}


def pick(rng: np.random.Generator, values: Sequence[str]) -> str:
    return values[int(rng.integers(len(values)))]


def _drawn(rng: np.random.Generator, of: str) -> str:
    return pick(rng, _TABLE[of])


def _names(rng: np.random.Generator, first_of: str, second_of: str, n: int) -> list[str]:
    """Draw `n` different names of two words."""
    first, second = _TABLE[first_of], _TABLE[second_of]
    numbers = rng.choice(len(first) * len(second), n, replace=False)
    return [f"{first[i % len(first)]} {second[i // len(first)]}" for i in numbers]


def _site(rng: np.random.Generator) -> Entity:
    letters = "".join(chr(ord("a") + int(i)) for i in rng.integers(26, size=2))
    return {
        "area": _drawn(rng, "area"),
        "address": f"{rng.integers(1, 100)} {_drawn(rng, 'street')} {_drawn(rng, 'way')}",
        "postcode": f"tg{rng.integers(1, 10)} {rng.integers(1, 10)}{letters}",
        "phone": _phone(rng),
    }


def _phone(rng: np.random.Generator) -> str:
    return f"0555 {rng.integers(1_000_000):06d}"


_COMBINATIONS = (
    *((RESTAURANT,), (HOTEL,), (SIGHT,), (TAXI,)),
    *((RESTAURANT, HOTEL), (HOTEL, SIGHT), (SIGHT, RESTAURANT), (SIGHT, TAXI), (HOTEL, TAXI), (RESTAURANT, TAXI)),
    *((HOTEL, SIGHT, RESTAURANT), (HOTEL, RESTAURANT, TAXI), (SIGHT, RESTAURANT, TAXI), (HOTEL, SIGHT, TAXI)),
)
_SHARES = np.array([0.09, 0.09, 0.09, 0.03, *[0.4 / 6] * 6, *[0.3 / 4] * 4])
_NAMED, _BOOKED, _SAME_AREA, _SAME_PRICE, _FAILS, _BOOKING_FAILS = 0.15, 0.5, 0.6, 0.5, 0.3, 0.3


def draw_goals(rng: np.random.Generator, database: Database, n: int, templates: Templates) -> list[Goal]:
    """Draw goals, no two of them alike."""
    found: dict[str, dict[str, DomainGoal]] = {}
    while len(found) < n:
        domains = _draw(rng, database)
        found.setdefault(repr(domains), domains)
    return [Goal(str(i), domains, goal_text(domains, templates)) for i, domains in enumerate(found.values(), start=1)]


def _draw(rng: np.random.Generator, database: Database) -> dict[str, DomainGoal]:
    names = _COMBINATIONS[int(rng.choice(len(_COMBINATIONS), p=_SHARES))]
    trip = {slot: pick(rng, BOOKING_VALUES[slot]) for slot in ("day", "people")}
    goals: dict[str, DomainGoal] = {}
    for name in names:
        goals[name] = _ride(rng, goals) if name == TAXI else _visit(rng, database, name, trip)
    return goals


def _visit(rng: np.random.Generator, database: Database, name: str, trip: dict[str, str]) -> DomainGoal:
    """Draw the goal for a place, and note its area and price as those of the trip."""
    spec = ONTOLOGY[name]
    shares = {"area": _SAME_AREA, "price": _SAME_PRICE}
    known = [slot for slot in shares if slot in trip and slot in spec.informable]
    same = {slot: trip[slot] for slot in known if rng.random() < shares[slot]}
    numbers = database.query(name, same) or database.query(name, {})
    entity = database.entities(name)[numbers[int(rng.integers(len(numbers)))]]
    if rng.random() < _NAMED:
        info = {spec.key: entity[spec.key]}
    else:
        slots = [slot for slot in spec.informable if slot != spec.key]
        chosen = {*_some(rng, slots, 1, 4), *same}
        info = {slot: entity[slot] for slot in slots if slot in chosen}
    trip.update({slot: info[slot] for slot in ("area", "price") if slot in info})
    book: dict[str, str] = {}
    if spec.bookable and rng.random() < _BOOKED:
        book = {slot: trip.get(slot) or pick(rng, BOOKING_VALUES[slot]) for slot in spec.bookable}
    requests = _some(rng, [slot for slot in spec.requestable if slot not in info], 0 if book else 1, 3)
    return DomainGoal(info, _fail_info(rng, database, name, info), requests, book, _fail_book(rng, book))


def _fail_info(rng: np.random.Generator, database: Database, name: str, info: Mapping[str, str]) -> dict[str, str]:
    """One other value for a constraint, so that no entity satisfies them all; often empty."""
    if rng.random() >= _FAILS or ONTOLOGY[name].key in info:
        return {}
    values = {slot: sorted({entity[slot] for entity in database.entities(name)}) for slot in info}
    others = [{slot: value} for slot in info for value in values[slot] if value != info[slot]]
    failing = [other for other in others if not database.query(name, {**info, **other})]
    return failing[int(rng.integers(len(failing)))] if failing else {}


def _fail_book(rng: np.random.Generator, book: Mapping[str, str]) -> dict[str, str]:
    """Another value for a slot of the booking, which is not available; often empty."""
    if not book or rng.random() >= _BOOKING_FAILS:
        return {}
    slot = pick(rng, [slot for slot in book if slot != "people"])
    return {slot: pick(rng, [value for value in BOOKING_VALUES[slot] if value != book[slot]])}


def _ride(rng: np.random.Generator, goals: Mapping[str, DomainGoal]) -> DomainGoal:
    """Draw the goal for a taxi from the first place of the goal to the second one."""
    named = [wanted.info.get("name", "") for wanted in goals.values()]
    info = {end: name for end, name in zip(("from", "to"), named, strict=False) if name}
    table = goals[RESTAURANT].book.get("time") if RESTAURANT in goals else None
    if table is None:
        info[pick(rng, ("leave", "arrive"))] = pick(rng, _times(range(8, 22)))
    elif len(goals) > 1:
        info["arrive"] = table
    else:
        info["leave"] = f"{int(table[:2]) + 2}{table[2:]}"
    return DomainGoal(info, requests=_some(rng, ONTOLOGY[TAXI].requestable, 1, 2))


def _some(rng: np.random.Generator, values: Sequence[str], least: int, most: int) -> tuple[str, ...]:
    """Between `least` and `most` of the values, in their order."""
    n = int(rng.integers(least, most + 1))
    chosen: Collection[int] = set(rng.permutation(len(values))[:n].tolist())
    return tuple(value for i, value in enumerate(values) if i in chosen)


_TOLD = 3
_VALUES = {name: {slot: BOOKING_VALUES[slot] for slot in domain.bookable} for name, domain in ONTOLOGY.domains.items()}


def town_guide(seed: int = 0, n_dialogues: Annotated[int, Field(ge=4)] = 400, noise: Fraction = 0.1) -> World:
    """Generate a town with restaurants, hotels, sights and taxis, and dialogues about it.

    The dialogues are those of a rule policy and a simulated user. The policy is careless now and then, so that whoever
    imitates it has something left to learn. No two dialogues have the same goal.

    Args:
        seed: Seed of everything random.
        n_dialogues: Number of training dialogues. Validation and test have a quarter of it each.
        noise: Share of turns in which the policy forgets an act, asks something superfluous, or says something else
            that makes sense.
    """
    rng = np.random.default_rng(seed)
    database = make_town(rng)
    places = places_of(database)
    templates = Templates(database, _VALUES, WORDS)
    lexicalizer = Lexicalizer(database)
    policy = CarelessRulePolicy(lexicalizer, noise, rng)
    user = AgendaUser(ONTOLOGY, places=places)
    sizes = {split: n_dialogues if split == "train" else n_dialogues // 4 for split in SPLITS}
    goals = iter(draw_goals(rng, database, sum(sizes.values()), templates))
    dialogues: dict[str, list[CorpusDialogue]] = {split: [] for split in sizes}
    for split, size in sizes.items():
        for goal in itertools.islice(goals, size):
            exchanges = simulate(policy, user, lexicalizer, goal, rng)
            dialogues[split].append(corpus_dialogue(goal.id, goal, exchanges, templates))
    return make_world("town_guide", database, dialogues, places=places, words=WORDS, values=_VALUES)


class CarelessRulePolicy(RulePolicy):
    """A rule policy that does something else in a share of its turns."""

    def __init__(self, lexicalizer: Lexicalizer, noise: float, rng: np.random.Generator) -> None:
        super().__init__(lexicalizer, told=_TOLD)
        self._noise, self._rng = noise, rng

    def act(self, belief: BeliefState, heard: list[DialogueAct]) -> list[DialogueAct]:
        acts = super().act(belief, heard)
        if not belief.active or self._rng.random() >= self._noise:
            return acts
        spec = self._ontology[belief.active]
        kind = int(self._rng.integers(3))
        if kind == 0 and len(acts) > 1:
            forgotten = int(self._rng.integers(len(acts)))
            return [*acts[:forgotten], *acts[forgotten + 1 :]]
        if kind == 1:
            slot = spec.informable[int(self._rng.integers(len(spec.informable)))]
            return list(dict.fromkeys([*acts, DialogueAct(REQUEST, spec.name, slot)]))
        others = [DialogueAct(REQ_MORE, GENERAL)]
        if not spec.generated:
            others += [DialogueAct(INFORM, spec.name, slot, "1") for slot in (CHOICE, spec.key, *spec.requestable)]
        return [others[int(self._rng.integers(len(others)))]]
