"""Statistics over few runs, as recommended by Agarwal et al. 2021 (arXiv 2108.13264).

Means over a handful of seeds say little without an interval. Intervals here are percentile bootstrap intervals over
runs: each group of runs is resampled on its own (stratified).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from rl4dialog.functional.bootstrap import Estimate, bootstrap_intervals

N_RESAMPLES = 10_000


def interquartile_mean(values: ArrayLike) -> float:
    """Mean of the middle half of the values; with fewer than four, of all."""
    return float(stats.trim_mean(values, 0.25))


def estimate(values: Sequence[float], statistic: Callable[[ArrayLike], float] = interquartile_mean) -> Estimate:
    """A statistic over runs with its interval, of which there is none for fewer than two runs.

    Args:
        values: One number per run.
        statistic: The statistic.
    """
    point = statistic(values)
    if len(values) < 2:
        return Estimate(point)
    array = np.asarray(values, dtype=float)
    (interval,) = bootstrap_intervals(lambda rows: [statistic(array[rows])], len(array), n_resamples=N_RESAMPLES)
    return Estimate(point, interval)


def probability_of_improvement(ours: Sequence[float], others: Sequence[float]) -> Estimate:
    """Probability that a random run of one group is better than one of another; a tie counts half.

    This is the Mann-Whitney U statistic, divided by the number of pairs (Agarwal et al. 2021).
    """
    point = _share_better(ours, others)
    if min(len(ours), len(others)) < 2:
        return Estimate(point)
    one, other = np.asarray(ours, dtype=float), np.asarray(others, dtype=float)
    (interval,) = bootstrap_intervals(
        lambda rows, other_rows: [_share_better(one[rows], other[other_rows])],
        len(one),
        len(other),
        n_resamples=N_RESAMPLES,
    )
    return Estimate(point, interval)


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


def smoothed(values: Sequence[float], window: int = 5) -> list[float]:
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


def _share_better(ours: ArrayLike, others: ArrayLike) -> float:
    difference = np.subtract.outer(np.asarray(ours), np.asarray(others))
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())
