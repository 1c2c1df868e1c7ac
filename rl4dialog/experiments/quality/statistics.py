"""Statistics over few runs: means with Student's t intervals, curves at equal KL, sample efficiency."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl4dialog.functional.statistics import Estimate
from rl4dialog.runs.report.statistics import mean_interval


def estimate(values: Sequence[float]) -> Estimate:
    """The mean over runs with its interval, of which there is none for fewer than two runs.

    Args:
        values: One number per run.
    """
    return Estimate(float(np.mean(values)), mean_interval(values))


def probability_of_improvement(ours: Sequence[float], others: Sequence[float]) -> Estimate:
    """Probability that a random run of one group is better than one of another; a tie counts half.

    This is the Mann-Whitney U statistic, divided by the number of pairs (Agarwal et al. 2021, arXiv 2108.13264). It has
    no interval, because over few runs that of the bootstrap covers far too seldom.
    """
    difference = np.subtract.outer(np.asarray(ours, dtype=float), np.asarray(others, dtype=float))
    return Estimate(float(((difference > 0) + 0.5 * (difference == 0)).mean()))


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
