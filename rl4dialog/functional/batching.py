"""Which sequences go through a model together, so that little of the work is spent on padding."""

from __future__ import annotations

import numpy as np

FIXED_COST = {"cpu": 256, "cuda": 4096}
"""Token positions that cost as much as one more pass through a model, by kind of device."""

PASS_SIZE = {"cpu": 32, "cuda": 256}
"""Sequences beyond which a pass without gradients gains nothing, and only needs more memory, by kind of device."""


def length_groups(lengths: np.ndarray, fixed_cost: float, max_size: int | None = None) -> list[np.ndarray]:
    """Cut sequences into groups of similar length, each padded to its own longest.

    Of all ways to cut the sequences in order of length, this is one that minimizes ``sum(size * longest + fixed_cost)``
    over the groups; found by dynamic programming in O(n * max_size).

    Args:
        lengths: In tokens. Shape (n,).
        fixed_cost: Of one more group, in token positions.
        max_size: Sequences that a group may have; any number if ``None``.

    Returns:
        Indices of each group's sequences, longest first. Together they are 0 to n - 1.
    """
    n = len(lengths)
    max_size = max_size or n
    order = np.argsort(-np.asarray(lengths), kind="stable")
    longest = np.asarray(lengths)[order].astype(float)
    # best[end] is the least cost of the first `end` sequences, the last group of which starts at cut[end].
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
