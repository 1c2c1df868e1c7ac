"""The town: its domains, and a seeded generator of its places and taxis. All names are made up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl4dialog.tasks.dialogue_acts.database import Database, Entity
from rl4dialog.tasks.dialogue_acts.ontology import Domain, Ontology
from rl4dialog.tasks.dialogue_acts.templates import Words

RESTAURANT, HOTEL, SIGHT, TAXI = "restaurant", "hotel", "sight", "taxi"
ONTOLOGY = Ontology(
    [
        Domain(
            RESTAURANT,
            informable=("food", "price", "area", "name"),
            requestable=("phone", "address", "postcode", "price", "area", "food"),
            bookable=("day", "time", "people"),
            times=("time",),
        ),
        Domain(
            HOTEL,
            informable=("type", "stars", "price", "area", "parking", "internet", "name"),
            requestable=("phone", "address", "postcode", "type", "stars", "price", "area", "parking", "internet"),
            bookable=("day", "people", "stay"),
        ),
        Domain(
            SIGHT,
            informable=("type", "area", "fee", "name"),
            requestable=("phone", "address", "postcode", "type", "area", "fee", "hours"),
        ),
        Domain(
            TAXI,
            informable=("from", "to", "leave", "arrive"),
            requestable=("car", "phone"),
            key="car",
            bounds={"leave": "at least", "arrive": "at most"},
            generated=("car", "phone"),
            required=(("from",), ("to",), ("leave", "arrive")),
        ),
    ],
    {"center": "centre", "moderately priced": "moderate", "inexpensive": "cheap"},
)
WORDS = {
    "restaurant": Words(("restaurant", "place to eat")),
    "hotel": Words(("hotel", "place to stay")),
    "sight": Words(("sight", "attraction")),
    "taxi": Words(("taxi", "cab")),
    "fee": Words(("entrance fee", "fee")),
    "hours": Words(("opening hours", "hours")),
    "parking": Words(("parking",), "with parking: {}"),
    "internet": Words(("internet", "wifi"), "with internet: {}"),
}
"""Words of domains and slots, where the usual ones do not fit; see `templates`."""
BOOKING_VALUES = {
    "day": ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
    "time": tuple(f"{hour}:{minute:02d}" for hour in range(12, 21) for minute in (0, 15, 30, 45)),
    "people": ("2", "3", "4", "5", "6", "7", "8"),
    "stay": ("2", "3", "4", "5"),
}
"""Values of bookings by slot."""

_AREAS = ("centre", "north", "east", "south", "west")
_PRICES = ("cheap", "moderate", "expensive")
_FOODS = ("italian", "indian", "chinese", "thai", "french", "greek", "turkish", "seafood", "vegetarian", "british")
_LODGINGS = ("inn", "guest house", "hostel")
_SIGHTS = ("museum", "gallery", "park", "theatre", "castle", "church")
_FEES = ("free", "3 pounds", "5 pounds", "8 pounds")
_HOURS = ("09:00 to 17:00", "10:00 to 18:00", "10:00 to 20:00", "12:00 to 22:00")
_FIRST = ("amber", "brass", "copper", "crooked", "golden", "ivory", "lucky", "old", "quiet", "red", "silver", "wild")
_TABLES = ("fork", "kettle", "ladle", "lantern", "orchard", "oven", "pan", "pepper", "spoon", "table")
_BEDS = ("acorn", "badger", "heron", "meadow", "otter", "pillow", "robin", "swan", "thistle", "willow")
_FOUNDERS = ("alder", "birch", "cedar", "corbett", "fairley", "hazel", "lindow", "marlow", "quince", "rowan")
_STREETS = ("abbey", "bridge", "chapel", "ferry", "garden", "harbour", "market", "mill", "river", "station")
_COLOURS = ("black", "blue", "green", "grey", "red", "white")
_CARS = ("estate", "minibus", "saloon", "van")


def make_town(rng: np.random.Generator, n_restaurants: int = 40, n_hotels: int = 30, n_sights: int = 30) -> Database:
    """Draw a town.

    Args:
        rng: Source of randomness.
        n_restaurants: Number of restaurants.
        n_hotels: Number of hotels.
        n_sights: Number of sights.

    Returns:
        Its places, each with a name of its own, and two dozen taxis.
    """
    return Database(
        ONTOLOGY,
        {
            RESTAURANT: [
                {"name": name, "food": pick(rng, _FOODS), "price": pick(rng, _PRICES), **_site(rng)}
                for name in _names(rng, _FIRST, _TABLES, n_restaurants)
            ],
            HOTEL: [
                {
                    "name": name,
                    "type": pick(rng, _LODGINGS),
                    "stars": str(rng.integers(1, 6)),
                    "price": pick(rng, _PRICES),
                    "parking": pick(rng, ("yes", "no")),
                    "internet": pick(rng, ("yes", "no")),
                    **_site(rng),
                }
                for name in _names(rng, _FIRST, _BEDS, n_hotels)
            ],
            SIGHT: [
                {
                    "name": name,
                    "type": name.split()[-1],
                    "fee": pick(rng, _FEES),
                    "hours": pick(rng, _HOURS),
                    **_site(rng),
                }
                for name in _names(rng, _FOUNDERS, _SIGHTS, n_sights)
            ],
            TAXI: [{"car": f"{colour} {car}", "phone": _phone(rng)} for colour in _COLOURS for car in _CARS],
        },
    )


def places_of(database: Database) -> dict[str, dict[str, tuple[str, ...]]]:
    """Names of all places, as the ends of a taxi ride."""
    names = tuple(entity["name"] for name in (RESTAURANT, HOTEL, SIGHT) for entity in database.entities(name))
    return {TAXI: {"from": names, "to": names}}


def pick(rng: np.random.Generator, values: Sequence[str]) -> str:
    """Draw one of the values."""
    return values[int(rng.integers(len(values)))]


def _names(rng: np.random.Generator, first: Sequence[str], second: Sequence[str], n: int) -> list[str]:
    """Draw `n` different names of two words."""
    numbers = rng.choice(len(first) * len(second), n, replace=False)
    return [f"{first[i % len(first)]} {second[i // len(first)]}" for i in numbers]


def _site(rng: np.random.Generator) -> Entity:
    letters = "".join(chr(ord("a") + int(i)) for i in rng.integers(26, size=2))
    return {
        "area": pick(rng, _AREAS),
        "address": f"{rng.integers(1, 100)} {pick(rng, _STREETS)} {pick(rng, ('street', 'lane', 'road'))}",
        "postcode": f"tg{rng.integers(1, 10)} {rng.integers(1, 10)}{letters}",
        "phone": _phone(rng),
    }


def _phone(rng: np.random.Generator) -> str:
    return f"0555 {rng.integers(1_000_000):06d}"
