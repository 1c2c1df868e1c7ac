"""Intervals against values that are known otherwise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rl4dialog.functional.bootstrap import Interval
from rl4dialog.runs.report.statistics import mean_and_standard_error, mean_intervals


def test_interval_of_a_coin_is_that_of_the_binomial_distribution() -> None:
    scores = np.array([0.0, 1.0] * 200)[:, None]
    (interval,) = mean_intervals(scores, n_resamples=20_000)
    # Resampled means are Binomial(400, 1/2) / 400, whose 2.5 % and 97.5 % quantiles are 180 / 400 and 220 / 400.
    assert interval is not None
    assert (interval.low, interval.high) == (pytest.approx(0.45, abs=0.0026), pytest.approx(0.55, abs=0.0026))


def test_interval_of_a_mean_is_as_wide_as_its_standard_error_says() -> None:
    scores = np.random.default_rng(1).normal(3.0, 2.0, size=(500, 1))
    (interval,) = mean_intervals(scores)
    error = scores.std() / math.sqrt(500)
    assert interval is not None
    assert interval.low == pytest.approx(scores.mean() - 1.96 * error, abs=0.1 * error)
    assert interval.high == pytest.approx(scores.mean() + 1.96 * error, abs=0.1 * error)


def test_intervals_hold_the_true_mean_about_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for trial in range(200):
        (interval,) = mean_intervals(rng.normal(size=(60, 1)), n_resamples=300, seed=trial)
        assert interval is not None
        held += interval.low <= 0.0 <= interval.high
    assert 0.89 <= held / 200 <= 0.985


def test_columns_are_resampled_together() -> None:
    old = np.random.default_rng(0).normal(size=100)
    first, second, difference = mean_intervals(np.stack([old, old + 0.25, (old + 0.25) - old], axis=1))
    assert first is not None and second is not None and difference is not None
    assert second.low - first.low == pytest.approx(0.25) and second.high - first.high == pytest.approx(0.25)
    assert (difference.low, difference.high) == (pytest.approx(0.25), pytest.approx(0.25))


def test_missing_scores_are_left_out() -> None:
    scores = np.array([[1.0, np.nan], [1.0, np.nan], [np.nan, 2.0]])
    assert mean_intervals(scores) == [Interval(1.0, 1.0), None]
    assert mean_intervals(np.empty((0, 1))) == [None]


def test_standard_error_over_runs() -> None:
    assert mean_and_standard_error([1.0, 2.0, 3.0]) == (2.0, pytest.approx(1 / math.sqrt(3)))
    assert mean_and_standard_error([4.0, math.nan]) == (4.0, None)
    mean, error = mean_and_standard_error([])
    assert math.isnan(mean) and error is None
