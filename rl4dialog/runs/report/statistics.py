"""Confidence intervals of means, over samples and over runs.

How often they cover was simulated (``scripts/interval_coverage.py``); ``docs/comparing.md`` has the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rl4dialog.functional.statistics import CONFIDENCE, Interval, wilson_interval

MIN_SAMPLES = 50
"""Fewer samples get no interval and no verdict: scores of samples can be skewed, and Student's t then covers less."""


def student_interval(value: float, *parts: tuple[float, int]) -> Interval | None:
    """Student's t interval of a number whose variance is a sum of independent estimates.

    With one part, this is the interval of a mean; with two, that of a difference of means (Welch 1947, doi
    10.1093/biomet/34.1-2.28).

    Args:
        value: The number.
        parts: Each estimate of a variance with its degrees of freedom.

    Returns:
        ``None`` without degrees of freedom, or if all variances are 0: a few equal values do not show their spread.
    """
    variance = sum(each for each, _ in parts)
    if min(df for _, df in parts) < 1 or not variance > 0:
        return None
    df = variance**2 / sum(each**2 / df for each, df in parts)
    low, high = stats.t.interval(CONFIDENCE, df, loc=value, scale=math.sqrt(variance))
    return Interval(float(low), float(high))


def mean_interval(values: Sequence[float] | NDArray[np.float64]) -> Interval | None:
    """Student's t interval of a mean; ``None`` for fewer than two values, or if they are all the same. Ignores NaN."""
    mean, error = mean_and_standard_error(values)
    n = int(np.count_nonzero(~np.isnan(values)))
    return None if error is None else student_interval(mean, (error**2, n - 1))


def mean_intervals(scores: NDArray[np.float64], are_differences: bool = False) -> list[Interval | None]:
    """Compute confidence intervals of column means over samples.

    They are Student's t intervals, except for shares, whose scores are all 0 or 1: theirs are Wilson's.

    Args:
        scores: One row per sample, NaN where it has no score. Shape (N, C).
        are_differences: Whether the columns are differences of scores of the same samples, and so no shares.

    Returns:
        One interval per column; ``None`` for a column with fewer than ``MIN_SAMPLES`` scores.
    """
    intervals: list[Interval | None] = []
    for column in scores.T:
        known = column[~np.isnan(column)]
        if len(known) < MIN_SAMPLES:
            intervals.append(None)
        elif not are_differences and np.isin(known, (0, 1)).all():
            intervals.append(wilson_interval(float(known.sum()), len(known)))
        else:
            mean = float(known.mean())
            intervals.append(mean_interval(known) or Interval(mean, mean))
    return intervals


def mean_and_standard_error(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float | None]:
    """Mean and standard error over runs; the latter is ``None`` for a single run. Ignores NaN."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan, None
    error = float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else None
    return float(np.mean(known)), error
