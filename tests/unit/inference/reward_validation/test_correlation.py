from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest

from rl4dialog.inference.reward_validation.correlation import correlate


def naive_tau_b(x: Sequence[float], y: Sequence[float]) -> float:
    """Kendall's tau-b from its definition."""
    pairs = list(itertools.combinations(range(len(x)), 2))
    signs = [(np.sign(x[i] - x[j]), np.sign(y[i] - y[j])) for i, j in pairs]
    untied = [sum(sign[side] != 0 for sign in signs) for side in (0, 1)]
    return float(sum(a * b for a, b in signs) / math.sqrt(untied[0] * untied[1]))


def naive_ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]


@pytest.mark.parametrize(("n_x", "n_y"), [(5, 4), (3, 1000), (1000, 3), (1000, 1000)])
def test_coefficients_equal_their_definitions_with_ties_and_gaps(n_x: int, n_y: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(n_x, size=60).astype(float), rng.integers(n_y, size=60).astype(float)
    with_gaps = x.copy()
    with_gaps[:10] = math.nan
    y[50:] = math.nan
    found = correlate(with_gaps, y, n_resamples=0)
    assert found.n == 40
    x, y = x[10:50], y[10:50]
    assert found.kendall == pytest.approx(naive_tau_b(x, y))
    assert found.spearman == pytest.approx(np.corrcoef(naive_ranks(x), naive_ranks(y))[0, 1])
    assert found.spearman_interval is None


def test_perfect_agreement_is_one_and_its_reverse_minus_one() -> None:
    found = correlate([1, 2, 3, 4], [10, 20, 30, 40], n_resamples=0)
    assert (found.spearman, found.kendall) == (pytest.approx(1.0), pytest.approx(1.0))
    found = correlate([1, 2, 3, 4], [4, 3, 2, 1], n_resamples=0)
    assert (found.spearman, found.kendall) == (pytest.approx(-1.0), pytest.approx(-1.0))


def test_interval_contains_the_true_correlation_as_often_as_it_says() -> None:
    rng, rho = np.random.default_rng(0), 0.5
    truth = 6 / math.pi * math.asin(rho / 2)  # Spearman's of a bivariate normal distribution
    hits = 0
    for seed in range(60):
        x = rng.normal(size=100)
        y = rho * x + math.sqrt(1 - rho**2) * rng.normal(size=100)
        found = correlate(x, y, n_resamples=100, seed=seed)
        assert found.spearman_interval is not None and found.kendall_interval is not None
        assert found.spearman in found.spearman_interval and found.kendall in found.kendall_interval
        hits += truth in found.spearman_interval
    assert hits >= 50


def test_groups_are_resampled_as_a_whole() -> None:
    rng = np.random.default_rng(0)
    x, y = np.repeat(rng.normal(size=20), 10), np.repeat(rng.normal(size=20), 10)
    single = correlate(x, y, n_resamples=200).spearman_interval
    grouped = correlate(x, y, np.repeat(range(20), 10), n_resamples=200).spearman_interval
    assert single is not None and grouped is not None
    assert grouped.high - grouped.low > 2 * (single.high - single.low)


@pytest.mark.parametrize(
    ("scores", "ratings", "problem"),
    [
        ([1, 1, 1], [1, 2, 3], "the score is always 1"),
        ([1, 2, 3], [5, 5, 5], "the rating is always 5"),
        ([1, 2, math.nan], [1, math.nan, 3], "only 1 items have both"),
    ],
)
def test_column_without_information_is_named(scores: list[float], ratings: list[float], problem: str) -> None:
    found = correlate(scores, ratings)
    assert found.problem == problem and math.isnan(found.spearman)


def test_few_groups_have_a_correlation_without_an_interval() -> None:
    rng = np.random.default_rng(0)
    scores, ratings = rng.normal(size=40), rng.normal(size=40)
    assert correlate(scores, ratings, groups=[i // 2 for i in range(40)]).spearman_interval is not None
    few = correlate(scores, ratings, groups=[i // 3 for i in range(40)])
    assert few.spearman_interval is few.kendall_interval is None and few.problem is None
