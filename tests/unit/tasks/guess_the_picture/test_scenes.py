"""The tables of scenes."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from typing import Any

import pytest
from other_processes import assert_other_processes_make_the_same

from rl4dialog.tasks.guess_the_picture.scenes import ATTRIBUTES, VIEWS, scene_table, table_of


def test_values_of_an_attribute_differ_and_its_group_is_a_part() -> None:
    assert list(ATTRIBUTES) == ["thing", "color", "number", "place", "weather", "person"]
    for attribute in ATTRIBUTES.values():
        assert len(set(attribute.values)) == len(attribute.values) == 2 * len(attribute.group)
        assert attribute.group < set(attribute.values)
    values = [value for attribute in ATTRIBUTES.values() for value in attribute.values]
    assert len(set(values)) == len(values)


def test_every_view_hides_two_attributes_and_all_are_hidden_in_some() -> None:
    assert all(len(hidden) == 2 for hidden in VIEWS.values())
    assert set().union(*VIEWS.values()) == set(ATTRIBUTES)


def test_table_has_all_values_and_impressions_in_turn() -> None:
    scenes = scene_table(2000, 0)
    assert [scene.impression for scene in scenes[:6]] == [0, 1, 2, 3, 0, 1]
    for name, attribute in ATTRIBUTES.items():
        counts = Counter(scene.values[name] for scene in scenes)
        assert set(counts) == set(attribute.values)
        assert max(counts.values()) < 1.4 * 2000 / len(attribute.values)
    assert set(Counter(scene.view for scene in scenes)) == set(VIEWS)


def test_seed_decides_and_a_longer_table_starts_alike() -> None:
    assert scene_table(30, 1) == scene_table(60, 1)[:30] != scene_table(30, 2)
    assert_other_processes_make_the_same(functools.partial(scene_table, 20, 3))


def test_most_scenes_differ() -> None:
    scenes = scene_table(200, 0)
    equal = [pair for pair in itertools.combinations(scenes, 2) if pair[0].values == pair[1].values]
    assert len(equal) <= 3


def test_table_of_a_sample_is_the_one_that_it_names() -> None:
    assert table_of({"scene": 4, "table": {"n_scenes": 5, "seed": 7}}) == scene_table(5, 7)


@pytest.mark.parametrize(
    "meta_info",
    [
        *({}, {"scene": 0}, {"scene": 5, "table": {"n_scenes": 5, "seed": 0}}, {"scene": 0, "table": [5, 0]}),
        *({"scene": "0", "table": {"n_scenes": 5, "seed": 0}}, {"scene": 0, "table": {"n_scenes": 5}}),
        *({"scene": True, "table": {"n_scenes": 5, "seed": 0}}, {"scene": -1, "table": {"n_scenes": 5, "seed": 0}}),
    ],
)
def test_sample_without_a_scene_has_no_table(meta_info: dict[str, Any]) -> None:
    assert table_of(meta_info) is None
