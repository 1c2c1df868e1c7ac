"""Intervals against scipy's, and how often they hold a mean that is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from rl4dialog.functional.statistics import Interval, wilson_interval
from rl4dialog.runs.report.statistics import (
    MIN_SAMPLES,
    mean_and_standard_error,
    mean_interval,
    mean_intervals,
    student_interval,
)


def parts(values: np.ndarray) -> tuple[float, int]:
    return float(values.var(ddof=1)) / len(values), len(values) - 1


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10])
def test_intervals_over_few_runs_hold_the_mean_as_often_as_they_say(n: int) -> None:
    rng, held, apart = np.random.default_rng(n), 0, 0
    for ours, others in zip(rng.normal(3.0, 1.0, (1000, n)), rng.normal(0.0, 2.0, (1000, n)), strict=True):
        own = mean_interval(ours)
        difference = student_interval(float(ours.mean() - others.mean()), parts(ours), parts(others))
        assert own is not None and difference is not None
        held, apart = held + (3.0 in own), apart + (3.0 in difference)
    assert 0.93 <= held / 1000 <= 0.97 and apart / 1000 >= 0.93


def test_a_difference_of_two_groups_is_welchs() -> None:
    ours, others = np.array([0.61, 0.64, 0.59, 0.63, 0.66]), np.array([0.58, 0.6, 0.42])
    low, high = stats.ttest_ind(ours, others, equal_var=False).confidence_interval()
    found = student_interval(float(ours.mean() - others.mean()), parts(ours), parts(others))
    assert found == Interval(pytest.approx(low), pytest.approx(high))


def test_values_without_spread_have_no_interval() -> None:
    assert mean_interval([0.5]) is None and mean_interval([]) is None
    assert mean_interval([1.0, 1.0, 1.0]) is None
    assert mean_interval([1.0, math.nan, 2.0]) == mean_interval([1.0, 2.0])


def test_samples_have_intervals_from_a_minimum_on() -> None:
    scores = np.random.default_rng(0).normal(size=(MIN_SAMPLES, 1))
    low, high = stats.ttest_1samp(scores[:, 0], 0.0).confidence_interval()
    assert mean_intervals(scores) == [Interval(pytest.approx(low), pytest.approx(high))]
    assert mean_intervals(scores[1:]) == [None]
    scores[0] = np.nan
    assert mean_intervals(scores) == [None]
    assert mean_intervals(np.empty((0, 1))) == [None]


def test_shares_are_uncertain_also_if_all_succeed_and_differences_are_no_shares() -> None:
    always = np.ones((60, 1))
    assert mean_intervals(always) == [wilson_interval(60, 60)]
    assert mean_intervals(always, are_differences=True) == [Interval(1.0, 1.0)]


def test_standard_error_over_runs() -> None:
    assert mean_and_standard_error([1.0, 2.0, 3.0]) == (2.0, pytest.approx(1 / math.sqrt(3)))
    assert mean_and_standard_error([4.0, math.nan]) == (4.0, None)
    mean, error = mean_and_standard_error([])
    assert math.isnan(mean) and error is None
