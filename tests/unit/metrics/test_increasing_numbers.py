"""The score of the synthetic task."""

from __future__ import annotations

import pytest

from rl4dialog.metrics.increasing_numbers import IncreasingNumbersMetric, increasing_numbers_score


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 2 3 4", 1.0),
        ("1 2", 0.5),
        ("1 2 2 4", 0.5),
        ("1 two 3 4", 0.25),
        ("x 1 2 3", 0.0),
        ("", 0.0),
        ("1 2 3 4 5 5 6 7", 5 / 8),
        ("-2 0.5 nan 4", 0.5),
    ],
)
def test_increasing_prefix_is_divided_by_length(text: str, expected: float) -> None:
    assert increasing_numbers_score(text, min_tokens=4) == pytest.approx(expected)


def test_metric_is_the_mean() -> None:
    found = IncreasingNumbersMetric(2).compute(["", ""], ["1 2", "x"], [[""], [""]])
    assert found == {"synthetic/increasing_numbers_in_text": ([1.0, 0.0], 0.5)}
