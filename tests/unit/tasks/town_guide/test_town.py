"""The generated town."""

from __future__ import annotations

import numpy as np
import pytest

from rl4dialog.tasks.town_guide.town import ONTOLOGY, make_town, places_of


def town(seed: int = 0) -> dict[str, list[dict[str, str]]]:
    database = make_town(np.random.default_rng(seed))
    return {name: [dict(entity) for entity in database.entities(name)] for name in ONTOLOGY.domains}


def test_same_seed_gives_the_same_town() -> None:
    assert town(1) == town(1)
    assert town(1) != town(2)


@pytest.mark.parametrize("name", list(ONTOLOGY.domains))
def test_entities_have_all_slots_and_a_name_of_their_own(name: str) -> None:
    spec, entities = ONTOLOGY[name], town()[name]
    searched = () if spec.generated else spec.informable
    assert len(entities) >= 24
    assert all(entity[slot] for entity in entities for slot in {*searched, *spec.requestable, spec.key})
    assert len({entity[spec.key] for entity in entities}) == len(entities)


def test_values_are_normalized() -> None:
    for name, entities in town().items():
        for entity in entities:
            assert all(
                ONTOLOGY.normalized(name, slot, value) == value for slot, value in entity.items() if slot != "hours"
            )


def test_taxis_go_between_all_places() -> None:
    database = make_town(np.random.default_rng(0))
    ends = places_of(database)["taxi"]
    assert ends["from"] == ends["to"]
    assert len(set(ends["from"])) == sum(len(database.entities(name)) for name in ("restaurant", "hotel", "sight"))
