"""The reading of a walk, and its return."""

from __future__ import annotations

import json

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.tasks.random_walks.graph import Graph
from rl4dialog.tasks.random_walks.walks import Walk, WalkTask

# a is the goal; b -> a, c -> b or d, d -> c.
TASK = WalkTask(Graph({"a": [], "b": ["a"], "c": ["b", "d"], "d": ["c"]}, "a", 5), "c")


@pytest.mark.parametrize(
    ("text", "walk", "so_far", "whole"),
    [
        ("b a", Walk(2, reached=True), -2, -2),
        (" b   a ", Walk(2, reached=True), -2, -2),
        ("b a x y", Walk(2, reached=True), -2, -2),
        ("d c b a", Walk(4, reached=True), -4, -4),
        ("d c d c b", Walk(5), -5, -5),
        ("d c d c b a", Walk(5), -5, -5),
        ("d c d c x", Walk(4, illegal=True), -5, -5),
        ("d c d c b x", Walk(5), -5, -5),
        ("", Walk(0), 0, -5),
        ("d", Walk(1), -1, -5),
        ("d b", Walk(1, illegal=True), -5, -5),
        ("c", Walk(0, illegal=True), -5, -5),
        ("a", Walk(0, illegal=True), -5, -5),
        ("ba", Walk(0, illegal=True), -5, -5),
        ("B a", Walk(0, illegal=True), -5, -5),
        ("b, a", Walk(0, illegal=True), -5, -5),
    ],
)
def test_walk_is_read_until_its_end(text: str, walk: Walk, so_far: float, whole: float) -> None:
    assert TASK.read(text) == walk
    assert TASK.return_so_far(text) == so_far
    assert TASK.return_of(text) == whole


def test_optimal_return_is_that_of_the_start() -> None:
    assert TASK.optimal_return() == -2


def test_task_survives_meta_data_as_json() -> None:
    meta_data = json.loads(json.dumps({"other": 1, **TASK.to_meta()}))
    assert WalkTask.from_meta(meta_data, "test") == TASK


@pytest.mark.parametrize(
    ("meta_data", "there"),
    [(None, "None"), ({}, "None"), ({"walk": "b a"}, "'b a'"), ({"walk": {"start": "b"}}, "{'start': 'b'}")],
)
def test_other_samples_are_an_error_that_names_the_user(meta_data: dict | None, there: str) -> None:
    message = f"reward 'x' needs samples with a walk's start, .* not {there}; use the datapool random_walks"
    with pytest.raises(DataError, match=message):
        WalkTask.from_meta(meta_data, "reward 'x'")
