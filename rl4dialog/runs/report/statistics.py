"""Uncertainty of means: bootstrap intervals over samples, standard errors over runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
N_RESAMPLES = 2000
_MAX_COUNTS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def bootstrap_intervals(
    scores: NDArray[np.float64],
    confidence: float = CONFIDENCE,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> list[Interval | None]:
    """Compute confidence intervals of column means with the percentile bootstrap (Efron 1979) over rows.

    Each resample draws the same rows for all columns, so a column of differences is a paired comparison.

    Args:
        scores: One row per sample, NaN where it has no score. Shape (N, C).
        confidence: Share of resampled means inside the interval.
        n_resamples: Number of resamples.
        seed: Random seed of the resampling.

    Returns:
        One interval per column; ``None`` for a column with fewer than two scores.
    """
    present = ~np.isnan(scores)
    sums = np.where(present, scores, 0.0)
    means = []
    for counts in _resampled_counts(len(scores), n_resamples, np.random.default_rng(seed)):
        with np.errstate(invalid="ignore"):  # a resample may contain no score of a column
            means.append((counts @ sums) / (counts @ present))
    tail = (1 - confidence) / 2
    intervals: list[Interval | None] = []
    for column, n_present in enumerate(present.sum(axis=0)):
        if n_present < 2:
            intervals.append(None)
            continue
        low, high = np.nanquantile(np.concatenate([part[:, column] for part in means]), (tail, 1 - tail))
        intervals.append(Interval(float(low), float(high)))
    return intervals


def mean_and_standard_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard error over runs; the latter is ``None`` for a single run. Ignores NaN."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan, None
    error = float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else None
    return float(np.mean(known)), error


def _resampled_counts(n_rows: int, n_resamples: int, rng: np.random.Generator) -> Iterator[NDArray[np.float64]]:
    """How often each resample draws each row, in chunks that fit into memory. Each of shape (R, N)."""
    size = max(1, _MAX_COUNTS_AT_ONCE // max(1, n_rows))
    for start in range(0, n_resamples if n_rows else 0, size):
        n = min(size, n_resamples - start)
        draws = rng.integers(n_rows, size=(n, n_rows)) + n_rows * np.arange(n)[:, None]
        yield np.bincount(draws.ravel(), minlength=n * n_rows).reshape(n, n_rows).astype(float)
