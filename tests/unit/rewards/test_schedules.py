"""Weights that change over the iterations."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from rl4dialog.rewards.schedules import multiply, parse_weight

LINEAR = {"schedule": "linear", "start": 1.0, "end": 0.0, "n_iters": 5}
PIECEWISE = {"schedule": "piecewise", "values": [[1, 1], [3, 0.5], [4, -2.0]]}


def values(weight: Any) -> list[float]:
    return [weight(iteration) if callable(weight) else weight for iteration in range(1, 8)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (2, [2.0] * 7),
        ({"schedule": "constant", "value": 2}, [2.0] * 7),
        (LINEAR, [1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0]),
        (PIECEWISE, [1.0, 1.0, 0.5, -2.0, -2.0, -2.0, -2.0]),
    ],
)
def test_weight_in_each_iteration(spec: Any, expected: list[float]) -> None:
    weight = parse_weight(spec)
    assert values(weight) == pytest.approx(expected)
    # Env workers get it too.
    assert values(pickle.loads(pickle.dumps(weight))) == pytest.approx(expected)


@pytest.mark.parametrize("first", [3.0, LINEAR, PIECEWISE])
@pytest.mark.parametrize("second", [2.0, LINEAR])
def test_weights_of_weights_multiply(first: Any, second: Any) -> None:
    a, b = parse_weight(first), parse_weight(second)
    assert values(multiply(a, b)) == pytest.approx([x * y for x, y in zip(values(a), values(b), strict=True)])


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("much", "a number or a block with a schedule, not 'much'"),
        (True, "a number or a block"),
        (None, "a number or a block"),
        ({"start": 1}, "schedule None"),
        ({"schedule": "linaer"}, "'linaer'; did you mean 'linear'"),
        ({"schedule": "linear", "start": 1, "end": 0}, "exactly the keys start, end, n_iters"),
        ({**LINEAR, "n_iters": 1}, "n_iters of at least 2"),
        ({**LINEAR, "end": "low"}, "must contain numbers, not 'low'"),
        ({"schedule": "piecewise", "values": []}, "starting with iteration 1"),
        ({"schedule": "piecewise", "values": {1: 2.0}}, "starting with iteration 1"),
        ({"schedule": "piecewise", "values": [[2, 1.0]]}, "starting with iteration 1"),
        ({"schedule": "piecewise", "values": [[1, 1.0], [5, 1.0], [3, 1.0]]}, "starting with iteration 1"),
        ({"schedule": "piecewise", "values": [[1, 1.0], ["x", 1.0]]}, "starting with iteration 1"),
        ({"schedule": "piecewise", "values": [[1, None]]}, "must contain numbers"),
    ],
)
def test_what_is_no_weight_is_refused(spec: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_weight(spec)
