"""Bootstrap intervals against those of scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from rl4dialog.functional.statistics import Interval, bootstrap_intervals

OURS = np.array([0.61, 0.64, 0.59, 0.63, 0.66])
OTHERS = np.array([0.58, 0.6, 0.52, 0.55, 0.57, 0.62])


def scipys(statistic: object, *samples: np.ndarray) -> tuple[float, float]:
    options = {"method": "percentile", "n_resamples": 500, "vectorized": False, "rng": np.random.default_rng(0)}
    interval = stats.bootstrap(samples, statistic, **options).confidence_interval
    return pytest.approx((float(interval.low), float(interval.high)))


def test_the_interval_of_one_sample_is_scipys() -> None:
    (found,) = bootstrap_intervals(lambda rows: [np.median(OURS[rows])], 5, n_resamples=500)
    assert (found.low, found.high) == scipys(np.median, OURS)


def test_samples_are_resampled_on_their_own() -> None:
    def difference(rows: np.ndarray, other_rows: np.ndarray) -> list[float]:
        return [OURS[rows].mean() - OTHERS[other_rows].mean()]

    (found,) = bootstrap_intervals(difference, 5, 6, n_resamples=20_000)
    low, high = stats.bootstrap(
        (OURS, OTHERS), lambda a, b, axis: a.mean(axis=axis) - b.mean(axis=axis), method="percentile", rng=1
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.002)


def test_all_statistics_see_the_same_rows() -> None:
    first, second, difference = bootstrap_intervals(
        lambda rows: [OURS[rows].mean(), OURS[rows].mean() + 0.25, 0.25], 5, n_resamples=50
    )
    assert second == Interval(first.low + 0.25, first.high + 0.25)
    assert difference == Interval(0.25, 0.25)


def test_resamples_without_a_value_are_left_out() -> None:
    (found,) = bootstrap_intervals(lambda rows: [math.nan if rows.min() else 1.0], 3, n_resamples=50)
    assert found == Interval(1.0, 1.0)


def test_the_seed_decides_the_interval() -> None:
    (first,), (again,), (other,) = (
        bootstrap_intervals(lambda rows: [OURS[rows].mean()], 5, n_resamples=50, seed=seed) for seed in (0, 0, 1)
    )
    assert first == again != other
