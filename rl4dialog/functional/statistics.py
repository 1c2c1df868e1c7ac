"""Intervals and errors of means, proportions and correlations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats


def ratio_standard_error(sums: Sequence[float], counts: Sequence[int]) -> float:
    """Standard error of ``sum(sums) / sum(counts)``, a mean per token over n independently sampled replies.

    By linearization (Cochran 1977, "Sampling Techniques"), as tokens of a reply are not independent. Sums over the
    tokens, and numbers of tokens, have shape (n,). NaN for fewer than two replies.
    """
    if len(counts) < 2:
        return float("nan")
    tokens = np.asarray(counts, dtype=float)
    residuals = np.asarray(sums, dtype=float) - np.sum(sums) / tokens.sum() * tokens
    return float(np.std(residuals, ddof=1) / (tokens.mean() * len(tokens) ** 0.5))


def repeated_share(ids: np.ndarray, n: int = 3) -> float:
    """Fraction of a reply's n-grams that repeat an earlier one; 0 if the reply is too short. Shape (T,)."""
    n_grams = len(ids) - n + 1
    if n_grams < 2:
        return 0.0
    return 1 - len({ids[i : i + n].tobytes() for i in range(n_grams)}) / n_grams


def wilson_interval(n_successes: float, n_trials: int) -> Interval:
    """Score interval of a proportion (Wilson 1927, doi 10.2307/2276774); a tie may count half a success.

    Unlike the bootstrap, it has a width also if all trials succeed, and covers well for few trials.
    """
    if n_trials < 1:
        raise ValueError("an interval of a proportion needs at least one trial")
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share, spread = n_successes / n_trials, z * z / n_trials
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / n_trials + spread / (4 * n_trials))
    return Interval(max(centre - half, 0.0), min(centre + half, 1.0))


def spearman(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """Spearman's rank correlation, shapes (N,); NaN if a column is constant or empty."""
    return math.nan if _has_no_order(x) or _has_no_order(y) else float(stats.spearmanr(x, y).statistic)


def roc_auc(positive: NDArray[np.float64], negative: NDArray[np.float64]) -> float:
    """Area under the ROC curve of the scores of two classes, shapes (N,) and (M,); NaN if one is empty.

    It is how often a positive one is higher than a negative one, a tie counting half (Mann and Whitney 1947).
    """
    n, m = len(positive), len(negative)
    if not n or not m:
        return math.nan
    ranks = stats.rankdata(np.concatenate([positive, negative]))[:n].sum()
    return float((ranks - n * (n + 1) / 2) / (n * m))


def _has_no_order(values: NDArray[np.float64]) -> bool:
    return len(values) == 0 or bool((values == values[0]).all())


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
    """Compute confidence intervals of C statistics of one or several samples, each of which is resampled on its own.

    As ``scipy.stats.bootstrap`` with ``method="percentile"``, but resamples without a value are left out.
    ``statistics`` computes shape (C,) from the drawn rows of each sample, NaN for no value. All statistics see the same
    rows, so that of a difference is a paired comparison. ``sizes`` are the samples' numbers of rows.
    """
    rng = np.random.default_rng(seed)
    drawn = [statistics(*(rng.integers(size, size=size) for size in sizes)) for _ in range(n_resamples)]
    tail = (1 - CONFIDENCE) / 2
    lows, highs = np.nanquantile(np.asarray(drawn, dtype=float), (tail, 1 - tail), axis=0)
    return [Interval(float(low), float(high)) for low, high in zip(lows, highs, strict=True)]
