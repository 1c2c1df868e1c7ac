"""Statistics over few runs, as recommended by Agarwal et al. 2021 (arXiv 2108.13264).

Means over a handful of seeds say little without an interval. Intervals here are percentile bootstrap intervals over
runs: each group of runs is resampled on its own (stratified).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from rl4dialog.functional.bootstrap import CONFIDENCE, Estimate, Interval

N_RESAMPLES = 10_000


def interquartile_mean(values: ArrayLike, axis: int = -1) -> Any:
    """Mean of the middle half of the values along an axis; with fewer than four, of all."""
    return stats.trim_mean(values, 0.25, axis)


def estimate(values: Sequence[float]) -> Estimate:
    """The interquartile mean over runs with its interval, of which there is none for fewer than two runs.

    Args:
        values: One number per run.
    """
    return _estimate(interquartile_mean, values)


def probability_of_improvement(ours: Sequence[float], others: Sequence[float]) -> Estimate:
    """Probability that a random run of one group is better than one of another; a tie counts half.

    This is the Mann-Whitney U statistic, divided by the number of pairs (Agarwal et al. 2021).
    """
    return _estimate(_share_better, ours, others)


def _estimate(statistic: Callable[..., Any], *groups: Sequence[float]) -> Estimate:
    samples = [np.asarray(group, dtype=float) for group in groups]
    point = float(statistic(*samples))
    if min(map(len, samples)) < 2:
        return Estimate(point)
    drawn = stats.bootstrap(
        samples,
        statistic,
        n_resamples=N_RESAMPLES,
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    return Estimate(point, Interval(float(drawn.confidence_interval.low), float(drawn.confidence_interval.high)))


def at_kl(kls: Sequence[float], values: Sequence[float], kl: float) -> float | None:
    """A metric where a run's curve first reaches a KL, by linear interpolation.

    Args:
        kls: KL to the reference at each evaluation, in the order of training.
        values: The metric at each evaluation.
        kl: The KL.

    Returns:
        The metric; ``None`` if the curve stays below the KL.
    """
    if not kls:
        return None
    if kls[0] >= kl:
        return float(values[0])
    for i in range(1, len(kls)):
        if kls[i] >= kl:
            share = (kl - kls[i - 1]) / (kls[i] - kls[i - 1])
            return float(values[i - 1] + share * (values[i] - values[i - 1]))
    return None


def smoothed(values: Sequence[float], window: int = 3) -> list[float]:
    """Mean of each value and those before it, of at most ``window`` values."""
    return [float(np.mean(values[max(0, end - window) : end])) for end in range(1, len(values) + 1)]


def tokens_to_reward(rewards: Sequence[float], tokens: Sequence[float], level: float) -> float | None:
    """Tokens of all rollouts until the smoothed reward first reaches a level.

    Args:
        rewards: Mean task reward of each iteration.
        tokens: Tokens of each iteration.
        level: The level.

    Returns:
        The number of tokens; ``None`` if the reward stays below the level.
    """
    found = zip(smoothed(rewards), np.cumsum(tokens), strict=True)
    return next((float(spent) for reward, spent in found if reward >= level), None)


def _share_better(ours: NDArray[np.float64], others: NDArray[np.float64], axis: int = -1) -> Any:
    """Of arrays (..., runs), whose last axis is the one of the runs."""
    difference = ours[..., :, np.newaxis] - others[..., np.newaxis, :]
    return ((difference > 0) + 0.5 * (difference == 0)).mean(axis=(-2, -1))
