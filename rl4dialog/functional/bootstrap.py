"""Confidence intervals by the percentile bootstrap (Efron 1979, "Bootstrap Methods: Another Look at the Jackknife")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Estimate:
    """A number and its confidence interval; ``None`` if unknown."""

    value: float
    interval: Interval | None = None


def bootstrap_intervals(
    statistics: Callable[..., ArrayLike], *sizes: int, n_resamples: int, seed: int = 0
) -> list[Interval]:
    """Compute confidence intervals of statistics of one or several samples, each of which is resampled on its own.

    The same as ``scipy.stats.bootstrap`` with ``method="percentile"``, except that resamples without a value are left
    out.

    Args:
        statistics: Computes the statistics, of shape (C,), from the drawn rows of each sample; NaN for none. All
            statistics see the same rows, so the statistic of a difference is a paired comparison.
        sizes: Number of rows of each sample.
        n_resamples: Number of resamples.
        seed: Random seed of the resampling.

    Returns:
        One interval per statistic.
    """
    rng = np.random.default_rng(seed)
    drawn = [statistics(*(rng.integers(size, size=size) for size in sizes)) for _ in range(n_resamples)]
    tail = (1 - CONFIDENCE) / 2
    lows, highs = np.nanquantile(np.asarray(drawn, dtype=float), (tail, 1 - tail), axis=0)
    return [Interval(float(low), float(high)) for low, high in zip(lows, highs, strict=True)]
