"""Uncertainty of means: bootstrap intervals over samples, standard errors over runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rl4dialog.functional.bootstrap import Interval, bootstrap_intervals

N_RESAMPLES = 2000


def mean_intervals(scores: NDArray[np.float64], n_resamples: int = N_RESAMPLES, seed: int = 0) -> list[Interval | None]:
    """Compute confidence intervals of column means with the bootstrap over rows.

    Each resample draws the same rows for all columns, so a column of differences is a paired comparison.

    Args:
        scores: One row per sample, NaN where it has no score. Shape (N, C).
        n_resamples: Number of resamples.
        seed: Random seed of the resampling.

    Returns:
        One interval per column; ``None`` for a column with fewer than two scores.
    """
    present = ~np.isnan(scores)
    known = present.sum(axis=0) > 1
    present, sums = present[:, known].astype(float), np.where(present, scores, 0.0)[:, known]

    def means(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        counts = np.bincount(rows, minlength=len(scores)).astype(float)
        with np.errstate(invalid="ignore"):  # a resample may contain no score of a column
            return (counts @ sums) / (counts @ present)

    found = iter(bootstrap_intervals(means, len(scores), n_resamples=n_resamples, seed=seed) if known.any() else ())
    return [next(found) if is_known else None for is_known in known]


def mean_and_standard_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard error over runs; the latter is ``None`` for a single run. Ignores NaN."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan, None
    error = float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else None
    return float(np.mean(known)), error
