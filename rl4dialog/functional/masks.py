"""Masks over padded rows, and batches of rows of similar length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rl4dialog.functional.distributed import mean_and_std, n_processes
from rl4dialog.functional.rounding import is_constant


def position_ids_from_mask(mask: Tensor) -> Tensor:
    """Number each row's real tokens from 0; padding before them, to which nothing attends, has 0. Shape (B, L)."""
    return (mask.long().cumsum(dim=-1) - 1).clamp(min=0)


def whiten(values: Tensor, eps: float = 1e-8) -> Tensor:
    """Shift to mean 0 and scale to (unbiased) standard deviation 1, as stable-baselines3 normalizes advantages.

    Numbers of the agent tokens of this process, over those of all. Constant ones, up to rounding, become 0; a single
    one, which has no deviation, stays. ``eps`` is added to the deviation. Shape (N,) -> (N,).
    """
    parallel = n_processes() > 1
    if values.numel() < 2 and not parallel:
        return values
    if is_constant(values, of_all_processes=parallel):
        return torch.zeros_like(values)
    mean, std = mean_and_std(values, unbiased=True) if parallel else (values.mean(), values.std())
    return (values - mean) / (std + eps)


def padded(rows: Sequence[Sequence[int]], left: bool = False, value: int = 0) -> tuple[Tensor, Tensor]:
    """Pad B rows of token ids on the right or left, and return ids and mask. Shapes (B, L), (B, L)."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), value)
    mask = torch.zeros((len(rows), longest), dtype=torch.bool)
    for row, tokens in enumerate(rows):
        place = slice(longest - len(tokens), longest) if left else slice(len(tokens))
        ids[row, place], mask[row, place] = torch.as_tensor(tokens, dtype=torch.long), True
    return ids, mask


def trim_left_padding(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Drop leading columns that are padding in all rows. Shapes (B, P), (B, P) -> (B, P'), (B, P')."""
    start = ids.shape[1] - max(int(mask.sum(dim=1).max()), 1)
    return ids[:, start:], mask[:, start:]


def left_aligned(ids: Tensor, mask: Tensor, longest: int | None = None) -> tuple[Tensor, Tensor]:
    """Move the padding of each row to the right, and drop columns that contain only padding.

    For models that count positions from the first column. The number of tokens of the ``longest`` row, if it is known,
    need not be read from a GPU. Shapes (B, P), (B, P) -> (B, P'), (B, P').
    """
    longest = max(int(mask.sum(dim=1).max()) if longest is None else longest, 1)
    order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)[:, :longest]
    return ids.gather(1, order), mask.gather(1, order)


def distinct_rows(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Indices of U distinct rows (U,), and for each row the position of its equal among those (B,).

    Only real tokens count, where the mask is True. Shapes (B, P), (B, P).
    """
    _, inverse = torch.unique(ids.masked_fill(~mask, -1), dim=0, return_inverse=True)
    rows = torch.arange(len(ids), device=ids.device)
    n_different = int(inverse.max()) + 1 if len(ids) else 0
    first = rows.new_full((n_different,), len(ids)).scatter_reduce(0, inverse, rows, "amin")
    return first, inverse


def rows_to_share(ids: Tensor, mask: Tensor, cost: int = 0) -> tuple[Tensor, Tensor] | None:
    """Distinct rows as from :func:`distinct_rows`, if computing each only once saves ``cost`` positions."""
    n_rows, n_columns = ids.shape
    if (n_rows - 1) * n_columns < cost:  # does not depend on the ids, which spares a synchronization with the GPU
        return None
    first, repeats = distinct_rows(ids, mask)
    # Gathering rows also takes time, above all in the backward pass.
    pays = 2 * len(first) <= n_rows and (n_rows - len(first)) * n_columns >= cost
    return (first, repeats) if pays else None


# Cost of one more forward pass in token positions, by device type. Apple's is a guess: Python starts its kernels, too.
FIXED_COST = {"cpu": 256, "cuda": 4096, "mps": 4096}

SHARING_COST = {**FIXED_COST, "cpu": 0}
"""Positions that reading shared prompts in a pass of their own must save, by device type.

On a GPU, a pass of few positions takes as long as one of many.
"""

PASS_SIZE = {"cpu": 32, "cuda": 256, "mps": 32}
"""Number of sequences above which a pass without gradients only needs more memory, by device type."""


def rows_per_pass(device: torch.device, n_tokens: int, n_logits: int) -> int | None:
    """Number of rows in a pass without gradients, whose logits take at most a sixteenth of a GPU's memory.

    Rows have up to ``n_tokens`` agent tokens with ``n_logits`` float32 logits each. The device decides, not what of
    it is free, so that a run is resumed with the same passes.
    """
    size = PASS_SIZE.get(device.type)
    if size is None or device.type != "cuda":
        return size
    memory: int = torch.cuda.get_device_properties(device).total_memory
    return min(size, max(1, memory // 16 // (4 * n_logits * n_tokens)))


def length_groups(lengths: np.ndarray, fixed_cost: float, max_size: int | None = None) -> list[np.ndarray]:
    """Split n sequences into groups of similar length, each padded to its longest one.

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
    order = np.argsort(-np.asarray(lengths), kind="stable")
    longest = np.asarray(lengths)[order].astype(float)
    # best[end] is the lowest cost of the first `end` sequences, with a last group that starts at cut[end].
    best, cut = np.zeros(n + 1), np.zeros(n + 1, dtype=int)
    for end in range(1, n + 1):
        starts = np.arange(max(0, end - (max_size or n)), end)
        costs = best[starts] + (end - starts) * longest[starts] + fixed_cost
        choice = int(costs.argmin())
        best[end], cut[end] = costs[choice], starts[choice]
    groups = []
    end = n
    while end > 0:
        groups.append(order[cut[end] : end])
        end = cut[end]
    return groups[::-1]
