"""Confidence intervals of proportions."""

from __future__ import annotations

import math
from statistics import NormalDist

from rl4dialog.functional.bootstrap import CONFIDENCE, Interval


def wilson_interval(n_successes: float, n_trials: int) -> Interval:
    """Score interval of a proportion (Wilson 1927, doi 10.2307/2276774).

    Unlike the bootstrap, it has a width also if all trials succeed, and covers well for few trials.

    Args:
        n_successes: Number of successes; a tie may count half.
        n_trials: Number of independent trials; at least 1.

    Raises:
        ValueError: If there are no trials.
    """
    if n_trials < 1:
        raise ValueError("an interval of a proportion needs at least one trial")
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    share, spread = n_successes / n_trials, z * z / n_trials
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / n_trials + spread / (4 * n_trials))
    return Interval(max(centre - half, 0.0), min(centre + half, 1.0))
