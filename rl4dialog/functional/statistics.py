"""What is said of the replies of an iteration beside their means."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def ratio_standard_error(sums: Sequence[float], counts: Sequence[int]) -> float:
    """Standard error of ``sum(sums) / sum(counts)``: a mean per token, where whole replies are drawn independently.

    By linearization (Cochran 1977, "Sampling Techniques", section 6.4): tokens of one reply are not independent.

    Args:
        sums: Of each reply. Shape (n,).
        counts: Tokens of each reply. Shape (n,).

    Returns:
        NaN for less than two replies.
    """
    if len(counts) < 2:
        return float("nan")
    tokens = np.asarray(counts, dtype=float)
    residuals = np.asarray(sums, dtype=float) - np.sum(sums) / tokens.sum() * tokens
    return float(np.std(residuals, ddof=1) / (tokens.mean() * len(tokens) ** 0.5))


def repeated_share(ids: np.ndarray, n: int = 3) -> float:
    """Share of the n-grams of a reply that stood in it before; 0 if it is too short to repeat one. Shape (T,)."""
    n_grams = len(ids) - n + 1
    if n_grams < 2:
        return 0.0
    return 1 - len({ids[i : i + n].tobytes() for i in range(n_grams)}) / n_grams
