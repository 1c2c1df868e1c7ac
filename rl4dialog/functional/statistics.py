"""Statistics of an iteration's replies other than means."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def ratio_standard_error(sums: Sequence[float], counts: Sequence[int]) -> float:
    """Standard error of ``sum(sums) / sum(counts)``, a mean per token over independently sampled replies.

    Computed by linearization (Cochran 1977, "Sampling Techniques"), as tokens of a reply are not
    independent.

    Args:
        sums: Sum over the tokens of each reply. Shape (n,).
        counts: Number of tokens of each reply. Shape (n,).

    Returns:
        The standard error; NaN for fewer than two replies.
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
