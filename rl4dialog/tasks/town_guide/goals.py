"""Goals of visitors: what they look for, in one to three domains that depend on each other.

Every goal is drawn around entities of the town, so its final constraints can always be satisfied. The domains of a goal
share one trip: its day, its number of people and, more often than not, its area and price. Which place the agent will
offer is not known in advance, so a ride has the name of a place as an end only where the goal itself names that place.
The agent asks for the other ends, and the user answers with a place that it was offered (`AgendaUser`). A taxi arrives
when the table is booked, or leaves after dinner.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from rl4dialog.tasks.dialogue_acts.database import Database
from rl4dialog.tasks.dialogue_acts.goals import DomainGoal, Goal, goal_text
from rl4dialog.tasks.dialogue_acts.templates import Templates
from rl4dialog.tasks.town_guide.town import BOOKING_VALUES, HOTEL, ONTOLOGY, RESTAURANT, SIGHT, TAXI, pick

_COMBINATIONS = (
    *((RESTAURANT,), (HOTEL,), (SIGHT,), (TAXI,)),
    *((RESTAURANT, HOTEL), (HOTEL, SIGHT), (SIGHT, RESTAURANT), (SIGHT, TAXI), (HOTEL, TAXI), (RESTAURANT, TAXI)),
    *((HOTEL, SIGHT, RESTAURANT), (HOTEL, RESTAURANT, TAXI), (SIGHT, RESTAURANT, TAXI), (HOTEL, SIGHT, TAXI)),
)
_SHARE = np.array([0.09, 0.09, 0.09, 0.03, *[0.4 / 6] * 6, *[0.3 / 4] * 4])
_NAMED, _BOOKED, _SAME_AREA, _SAME_PRICE, _FAILS, _BOOKING_FAILS = 0.15, 0.5, 0.6, 0.5, 0.3, 0.3
_RIDE_TIMES = tuple(f"{hour:02d}:{minute:02d}" for hour in range(8, 22) for minute in (0, 15, 30, 45))


def draw_goals(rng: np.random.Generator, database: Database, n: int, templates: Templates) -> list[Goal]:
    """Draw goals, no two of them alike.

    Args:
        rng: Source of randomness.
        database: The town.
        n: Number of goals.
        templates: Words of the goals' texts.
    """
    found: dict[str, dict[str, DomainGoal]] = {}
    while len(found) < n:
        domains = _draw(rng, database)
        found.setdefault(repr(domains), domains)
    return [Goal(str(i), domains, goal_text(domains, templates)) for i, domains in enumerate(found.values(), start=1)]


def _draw(rng: np.random.Generator, database: Database) -> dict[str, DomainGoal]:
    names = _COMBINATIONS[int(rng.choice(len(_COMBINATIONS), p=_SHARE))]
    trip = {slot: pick(rng, BOOKING_VALUES[slot]) for slot in ("day", "people")}
    goals: dict[str, DomainGoal] = {}
    for name in names:
        if name == TAXI:
            goals[name] = _ride(rng, goals)
        else:
            goals[name] = _visit(rng, database, name, trip)
    return goals


def _visit(rng: np.random.Generator, database: Database, name: str, trip: dict[str, str]) -> DomainGoal:
    """Draw the goal for a place, and note its area and price as those of the trip."""
    spec = ONTOLOGY[name]
    same = {
        slot: trip[slot]
        for slot, share in (("area", _SAME_AREA), ("price", _SAME_PRICE))
        if slot in trip and slot in spec.informable and rng.random() < share
    }
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
    failing = [
        {slot: value}
        for slot in info
        for value in values[slot]
        if value != info[slot] and not database.query(name, {**info, slot: value})
    ]
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
        info[pick(rng, ("leave", "arrive"))] = pick(rng, _RIDE_TIMES)
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
