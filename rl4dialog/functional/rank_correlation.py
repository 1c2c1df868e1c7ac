"""Rank correlations of two columns, by scipy; NaN where there is none."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats


def spearman(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Spearman's rank correlation; NaN if a column is constant or empty.

    Args:
        x: Values. Shape (N,).
        y: The same.
    """
    return math.nan if _has_no_order(x) or _has_no_order(y) else float(stats.spearmanr(x, y).statistic)


def kendall_tau_b(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Kendall's tau-b; NaN if a column is constant or empty.

    Args:
        x: Values. Shape (N,).
        y: The same.
    """
    return math.nan if _has_no_order(x) or _has_no_order(y) else float(stats.kendalltau(x, y).statistic)


def _has_no_order(values: NDArray[np.float64]) -> bool:
    return len(values) == 0 or bool((values == values[0]).all())
