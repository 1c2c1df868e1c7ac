"""Intervals of proportions equal scipy's."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from rl4dialog.functional.statistics import wilson_interval


@pytest.mark.parametrize(("k", "n"), [(0, 5), (5, 5), (31, 40), (1, 1), (250, 400)])
def test_interval_equals_scipys(k: int, n: int) -> None:
    expected = binomtest(k, n).proportion_ci(method="wilson")
    found = wilson_interval(k, n)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_tie_counts_half() -> None:
    assert wilson_interval(3, 10).low < wilson_interval(3.5, 10).low < wilson_interval(4, 10).low


def test_no_trials_are_an_error() -> None:
    with pytest.raises(ValueError, match="at least one trial"):
        wilson_interval(0, 0)
