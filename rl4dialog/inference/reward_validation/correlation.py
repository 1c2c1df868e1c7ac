"""Rank correlations of scores with ratings, and their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rl4dialog.functional.bootstrap import Interval, bootstrap_intervals
from rl4dialog.functional.rank_correlation import kendall_tau_b, spearman

N_RESAMPLES = 500
MIN_GROUPS = 20
"""Fewer groups get no interval: the percentile bootstrap then covers less than it says (``docs/comparing.md``)."""


@dataclass(frozen=True)
class Correlation:
    """Agreement of a score with a rating over the items that have both.

    Attributes:
        n: Number of these items.
        spearman: Spearman's rank correlation.
        kendall: Kendall's tau-b.
        spearman_interval: Its confidence interval.
        kendall_interval: Its confidence interval.
        problem: Why there is no correlation; the numbers are then NaN.
    """

    n: int
    spearman: float = math.nan
    kendall: float = math.nan
    spearman_interval: Interval | None = None
    kendall_interval: Interval | None = None
    problem: str | None = None


def correlate(
    scores: Sequence[float],
    ratings: Sequence[float],
    groups: Sequence[int] | None = None,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Correlation:
    """Correlate scores with ratings, with the percentile bootstrap over groups.

    Replies of one conversation are not independent, so whole conversations are resampled. Fewer than ``MIN_GROUPS``
    have no interval.

    Args:
        scores: One per item, NaN where there is none.
        ratings: The same.
        groups: Number of each item's group; by default each item is a group.
        n_resamples: Number of resamples; 0 for no intervals.
        seed: Random seed of the resampling.
    """
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(ratings, dtype=np.float64)
    known = ~(np.isnan(x) | np.isnan(y))
    x, y, n = x[known], y[known], int(known.sum())
    if n < 3:
        return Correlation(n, problem=f"only {n} items have both")
    for values, name in ((x, "score"), (y, "rating")):
        if (values == values[0]).all():
            return Correlation(n, problem=f"the {name} is always {values[0]:g}")
    of_item = np.arange(len(known)) if groups is None else np.asarray(groups)
    intervals = _intervals(x, y, np.unique(of_item[known], return_inverse=True)[1], n_resamples, seed)
    return Correlation(n, *_both(x, y), *intervals)


def _both(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[float, float]:
    """Spearman's and Kendall's coefficient; NaN if a column is constant."""
    return spearman(x, y), kendall_tau_b(x, y)


def _intervals(
    x: NDArray[np.float64], y: NDArray[np.float64], groups: NDArray[np.int64], n_resamples: int, seed: int
) -> tuple[Interval | None, Interval | None]:
    n_groups, items = int(groups.max()) + 1, np.arange(len(x))
    if n_groups < MIN_GROUPS or n_resamples == 0:
        return None, None

    def of_groups(drawn: NDArray[np.int64]) -> tuple[float, float]:
        rows = np.repeat(items, np.bincount(drawn, minlength=n_groups)[groups])
        return _both(x[rows], y[rows])

    of_spearman, of_kendall = bootstrap_intervals(of_groups, n_groups, n_resamples=n_resamples, seed=seed)
    return of_spearman, of_kendall
