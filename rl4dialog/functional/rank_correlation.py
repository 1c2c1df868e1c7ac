"""Rank correlations of two columns, with ties."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def spearman(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Spearman's rank correlation: Pearson's correlation of the ranks.

    Args:
        x: Values. Shape (N,).
        y: The same.

    Returns:
        The correlation; NaN if a column is constant or empty.
    """
    if len(x) == 0 or (x == x[0]).all() or (y == y[0]).all():
        return math.nan
    return float(np.corrcoef(_ranks(x), _ranks(y))[0, 1])


def kendall_tau_b(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Kendall's tau-b (Kendall 1945): concordant minus discordant pairs, over the pairs without ties.

    Args:
        x: Values, not all equal. Shape (N,).
        y: The same.
    """
    if len(np.unique(x)) < len(np.unique(y)):
        x, y = y, x  # one step for each level of y
    n, difference = len(x), 0
    lower = np.empty(0)
    counts = np.unique(y, return_counts=True)[1]
    by_level = np.split(x[np.argsort(y, kind="stable")], np.cumsum(counts)[:-1])
    for level in by_level:
        n_less, n_at_most = np.searchsorted(lower, level, "left"), np.searchsorted(lower, level, "right")
        difference += int((n_less + n_at_most - len(lower)).sum())
        lower = np.sort(np.concatenate([lower, level]), kind="stable")
    untied = [n * (n - 1) // 2 - _n_tied_pairs(values) for values in (x, y)]
    return difference / math.sqrt(untied[0]) / math.sqrt(untied[1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of their ranks."""
    _, levels, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[levels]
    return ranks


def _n_tied_pairs(values: NDArray[np.float64]) -> int:
    counts = np.unique(values, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())
