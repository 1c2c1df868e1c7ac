"""Statistics over few runs, as recommended by Agarwal et al. 2021 (arXiv 2108.13264).

Means over a handful of seeds say little without an interval. Intervals here are percentile bootstrap intervals over
runs: each group of runs is resampled on its own (stratified).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from rl4dialog.runs.report.statistics import CONFIDENCE, Interval

N_RESAMPLES = 10_000


@dataclass(frozen=True)
class Estimate:
    """A number with its bootstrap interval, of which there is none for fewer than two runs."""

    value: float
    interval: Interval | None = None

    def excludes(self, value: float) -> bool:
        """Whether the interval leaves out a value."""
        return self.interval is not None and value not in self.interval


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of the middle half of the values; with fewer than four, of all."""
    return float(stats.trim_mean(values, 0.25))


def estimate(values: Sequence[float], statistic: Callable[[Sequence[float]], float] = interquartile_mean) -> Estimate:
    """A statistic over runs with its interval.

    Args:
        values: One number per run.
        statistic: The statistic.
    """
    point = statistic(values)
    if len(values) < 2:
        return Estimate(point)
    drawn = _resampled(values, _generator())
    return _with_interval(point, [statistic(sample) for sample in drawn])


def probability_of_improvement(ours: Sequence[float], others: Sequence[float]) -> Estimate:
    """Probability that a random run of one group is better than one of another; a tie counts half.

    This is the Mann-Whitney U statistic, divided by the number of pairs (Agarwal et al. 2021, section 4.3).
    """
    point = _share_better(ours, others)
    if min(len(ours), len(others)) < 2:
        return Estimate(point)
    generator = _generator()
    pairs = zip(_resampled(ours, generator), _resampled(others, generator), strict=True)
    return _with_interval(point, [_share_better(one, other) for one, other in pairs])


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


def _share_better(ours: Sequence[float], others: Sequence[float]) -> float:
    difference = np.subtract.outer(np.asarray(ours), np.asarray(others))
    return float(((difference > 0) + 0.5 * (difference == 0)).mean())


def _resampled(values: Sequence[float], generator: np.random.Generator) -> np.ndarray:
    """Bootstrap samples. Shape (n,) -> (N_RESAMPLES, n)."""
    array = np.asarray(values, dtype=float)
    return array[generator.integers(len(array), size=(N_RESAMPLES, len(array)))]


def _with_interval(value: float, drawn: Sequence[float]) -> Estimate:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return Estimate(value, Interval(float(low), float(high)))


def _generator() -> np.random.Generator:
    return np.random.default_rng(0)  # the same page from the same runs
