"""Standard errors and repetitions."""

import math

import numpy as np
import pytest
from scipy import stats
from scipy.stats import binomtest

from rl4dialog.functional.statistics import (
    Interval,
    bootstrap_intervals,
    ratio_standard_error,
    repeated_share,
    spearman,
    wilson_interval,
)


def test_repeated_trigrams():
    assert repeated_share(np.array([1, 2, 3, 4, 5])) == 0
    assert repeated_share(np.array([7, 7, 7, 7, 7])) == pytest.approx(2 / 3)
    assert repeated_share(np.array([7, 7, 7])) == 0 and repeated_share(np.array([7, 7, 7, 7])) == 0.5
    assert repeated_share(np.array([7, 7, 7]), n=2) == 0.5


def test_standard_error_equals_its_formula():
    # Means per token: 10 of 6 tokens. Residuals 1 - 10/6, 3 - 20/6 and 6 - 30/6.
    residuals = np.array([-4, -2, 6]) / 6
    expected = residuals.std(ddof=1) / (2 * 3**0.5)
    assert ratio_standard_error([1.0, 3.0, 6.0], [1, 2, 3]) == pytest.approx(expected)
    assert ratio_standard_error([1.0, 3.0], [1, 1]) == pytest.approx(1.0)
    assert math.isnan(ratio_standard_error([1.0], [3]))


@pytest.mark.parametrize(("k", "n"), [(0, 5), (5, 5), (31, 40), (1, 1), (250, 400)])
def test_interval_equals_scipys(k, n):
    expected = binomtest(k, n).proportion_ci(method="wilson")
    found = wilson_interval(k, n)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    with pytest.raises(ValueError, match="at least one trial"):
        wilson_interval(0, 0)


def test_monotonic_columns_have_correlation_one():
    x = np.array([1.0, 2, 3, 4])
    assert np.allclose([spearman(x, x**3), spearman(x, -x)], [1, -1])


def test_constant_or_empty_column_has_no_correlation():
    x = np.array([1.0, 2, 3])
    assert math.isnan(spearman(x, np.ones(3))) and math.isnan(spearman(np.ones(3), x))
    assert math.isnan(spearman(np.array([]), np.array([])))


OURS = np.array([0.61, 0.64, 0.59, 0.63, 0.66])
OTHERS = np.array([0.58, 0.6, 0.52, 0.55, 0.57, 0.62])


def scipys(statistic, *samples):
    options = {"method": "percentile", "n_resamples": 500, "vectorized": False, "rng": np.random.default_rng(0)}
    interval = stats.bootstrap(samples, statistic, **options).confidence_interval
    return pytest.approx((float(interval.low), float(interval.high)))


def test_the_interval_of_one_sample_is_scipys():
    (found,) = bootstrap_intervals(lambda rows: [np.median(OURS[rows])], 5, n_resamples=500)
    assert (found.low, found.high) == scipys(np.median, OURS)
    assert bootstrap_intervals(lambda rows: [OURS[rows].mean()], 5, n_resamples=50, seed=1) != [found]


def test_samples_are_resampled_on_their_own():
    def difference(rows, other_rows):
        return [OURS[rows].mean() - OTHERS[other_rows].mean()]

    (found,) = bootstrap_intervals(difference, 5, 6, n_resamples=20_000)
    low, high = stats.bootstrap(
        (OURS, OTHERS), lambda a, b, axis: a.mean(axis=axis) - b.mean(axis=axis), method="percentile", rng=1
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.002)


def test_all_statistics_see_the_same_rows():
    first, second, difference = bootstrap_intervals(
        lambda rows: [OURS[rows].mean(), OURS[rows].mean() + 0.25, 0.25], 5, n_resamples=50
    )
    assert second == Interval(first.low + 0.25, first.high + 0.25)
    assert difference == Interval(0.25, 0.25)


def test_resamples_without_a_value_are_left_out():
    (found,) = bootstrap_intervals(lambda rows: [math.nan if rows.min() else 1.0], 3, n_resamples=50)
    assert found == Interval(1.0, 1.0) and 1.0 in found and 1.1 not in found
