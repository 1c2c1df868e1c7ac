"""Grouping of sequences into batches with little padding."""

from __future__ import annotations

import numpy as np

FIXED_COST = {"cpu": 256, "cuda": 4096}
"""Cost of one more forward pass in token positions, by device type."""

SHARING_COST = {"cpu": 0, "cuda": FIXED_COST["cuda"]}
"""Positions that reading shared prompts in a pass of their own must save, by device type.

On a GPU, a pass of few positions takes as long as one of many.
"""

PASS_SIZE = {"cpu": 32, "cuda": 256}
"""Number of sequences above which a pass without gradients only needs more memory, by device type."""


def length_groups(lengths: np.ndarray, fixed_cost: float, max_size: int | None = None) -> list[np.ndarray]:
    """Split sequences into groups of similar length, each padded to its longest sequence.

    The groups are consecutive in order of length and minimize ``sum(size * longest + fixed_cost)`` over the groups, by
    dynamic programming in O(n * max_size).

    Args:
        lengths: Lengths in tokens. Shape (n,).
        fixed_cost: Cost of each group, in token positions.
        max_size: Maximum number of sequences per group; ``None`` for no limit.

    Returns:
        Indices of the sequences in each group, longest first. Together they cover 0 to n - 1.
    """
    n = len(lengths)
    max_size = max_size or n
    order = np.argsort(-np.asarray(lengths), kind="stable")
    longest = np.asarray(lengths)[order].astype(float)
    # best[end] is the lowest cost of the first `end` sequences, with a last group that starts at cut[end].
    best, cut = np.zeros(n + 1), np.zeros(n + 1, dtype=int)
    for end in range(1, n + 1):
        starts = np.arange(max(0, end - max_size), end)
        costs = best[starts] + (end - starts) * longest[starts] + fixed_cost
        choice = int(costs.argmin())
        best[end], cut[end] = costs[choice], starts[choice]
    groups = []
    end = n
    while end > 0:
        groups.append(order[cut[end] : end])
        end = cut[end]
    return groups[::-1]
