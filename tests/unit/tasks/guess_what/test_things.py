"""The table of things and properties."""

from __future__ import annotations

import itertools

from rl4dialog.tasks.guess_what.things import PROPERTIES, THINGS


def test_size_of_the_table() -> None:
    assert len(set(THINGS)) == len(THINGS) == 40
    assert len(PROPERTIES) == 12


def test_every_pair_of_things_differs() -> None:
    for one, other in itertools.combinations(THINGS, 2):
        assert any((one in things) != (other in things) for things in PROPERTIES.values()), (one, other)


def test_properties_have_known_things_and_divide_them() -> None:
    for words, things in PROPERTIES.items():
        assert things < set(THINGS), words
        assert len(things) >= 5, words


def test_some_facts() -> None:
    properties = {thing: {words for words, things in PROPERTIES.items() if thing in things} for thing in THINGS}
    assert properties["duck"] == {"is it alive", "can it fly", "does it make sounds", "do you find it in water"}
    assert properties["coin"] == {
        *("is it made by people", "is it made of metal", "is it round", "is it flat", "is it smaller than a hand"),
    }
    assert not PROPERTIES["is it alive"] & PROPERTIES["is it made by people"]
    assert not PROPERTIES["is it smaller than a hand"] & PROPERTIES["is it bigger than a car"]
    assert PROPERTIES["is it food"] < PROPERTIES["do you find it in most kitchens"]
