"""The scenes of the game: attributes and their values, views, and seeded tables of scenes."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import is_whole_number


@dataclass(frozen=True)
class Attribute:
    """A property that all scenes have.

    Attributes:
        name: Its name.
        values: Possible values, as they are said.
        group: The values for which the answer to ``group_question`` is yes.
        open_question: Question for the value, without its question mark; likewise below.
        group_question: Yes/no question for the group.
        asks: Begin of yes/no questions for one value.
        states: Begin of whole sentences with the value.
    """

    name: str
    values: tuple[str, ...]
    group: frozenset[str]
    open_question: str
    group_question: str
    asks: str = "is it"
    states: str = "it is"


def _attribute(name: str, others: str, group: str, *words: str) -> Attribute:
    in_group = tuple(group.split(", "))
    return Attribute(name, (*others.split(", "), *in_group), frozenset(in_group), *words)


ATTRIBUTES = {
    attribute.name: attribute
    for attribute in (
        _attribute(
            "thing",
            "a car, a bus, a boat, a bicycle",
            "a dog, a cat, a horse, a bird",
            "what is it",
            "is it an animal",
        ),
        _attribute("color", "red, yellow, white", "black, brown, blue", "what color is it", "is it a dark color"),
        _attribute(
            "number",
            "two, three, four",
            "five, six, seven",
            *("how many are there", "are there more than four", "are there", "there are"),
        ),
        _attribute(
            "place",
            "in a park, on a beach, in a field, in a forest",
            "in a street, at a station, at a market, in a harbor",
            *("where is it", "is it in a town"),
        ),
        _attribute(
            "weather", "sunny, cloudy, windy", "rainy, snowy, foggy", "how is the weather", "is the weather bad"
        ),
        _attribute(
            "person",
            "a man, a woman",
            "a boy, a girl",
            *("who is there", "is there a child", "is there", "there is"),
        ),
    )
}
"""The attributes by name."""

VIEWS = {
    "a picture at night": frozenset({"color", "weather"}),
    "a close picture": frozenset({"place", "number"}),
    "a picture from far away": frozenset({"thing", "person"}),
    "a blurred picture": frozenset({"number", "person"}),
}
"""By view, which is also the caption of a picture, the attributes that are hard to see in it."""

N_IMPRESSIONS = 4


@dataclass(frozen=True)
class Scene:
    """A scene, as a picture of it.

    Attributes:
        view: The view, a key of ``VIEWS``.
        values: Value of each attribute, by its name.
        impression: Points from 0 to 3 that the guesser gives to the scene before anything is said.
    """

    view: str
    values: Mapping[str, str]
    impression: int

    @property
    def hard_to_see(self) -> frozenset[str]:
        """Names of the attributes that are hard to see in the picture."""
        return VIEWS[self.view]


@functools.lru_cache(maxsize=8)
def scene_table(n_scenes: int, seed: int) -> tuple[Scene, ...]:
    """Draw the scenes of a table: views and values at random, and the impressions 0, 1, 2, 3 in turn.

    Args:
        n_scenes: Number of scenes. A longer table starts with the same ones.
        seed: Random seed of the table.
    """
    rng = random.Random(derive_seed(seed, "scenes"))
    return tuple(
        Scene(
            rng.choice(list(VIEWS)),
            {name: rng.choice(attribute.values) for name, attribute in ATTRIBUTES.items()},
            index % N_IMPRESSIONS,
        )
        for index in range(n_scenes)
    )


def table_of(meta_info: Mapping[str, Any]) -> tuple[Scene, ...] | None:
    """Return the table that the meta data of a sample names; ``None`` if it names none, or not its hidden scene."""
    table, hidden = meta_info.get("table"), meta_info.get("scene")
    if not (isinstance(table, Mapping) and is_whole_number(hidden, at_least=0)):
        return None
    n_scenes, seed = table.get("n_scenes"), table.get("seed")
    if not (is_whole_number(n_scenes, at_least=hidden + 1) and isinstance(seed, int)):
        return None
    return scene_table(n_scenes, seed)
