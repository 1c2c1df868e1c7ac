"""Rank correlations; those with ties are compared with their definitions in the tests of reward validation."""

from __future__ import annotations

import math

import numpy as np

from rl4dialog.functional.statistics import kendall_tau_b, spearman


def test_monotonic_columns_have_correlation_one() -> None:
    x = np.array([1.0, 2, 3, 4])
    assert np.allclose([spearman(x, x**3), spearman(x, -x), kendall_tau_b(x, -x)], [1, -1, -1])


def test_constant_or_empty_column_has_no_correlation() -> None:
    x = np.array([1.0, 2, 3])
    assert math.isnan(spearman(x, np.ones(3))) and math.isnan(spearman(np.ones(3), x))
    assert math.isnan(spearman(np.array([]), np.array([])))
