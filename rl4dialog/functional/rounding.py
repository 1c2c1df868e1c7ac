"""Detection of numbers that are constant up to rounding.

Whitening divides by the standard deviation. If that is only rounding error, whitening would turn it into a signal.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl4dialog.functional.distributed import all_reduce_max_numbers, all_reduce_numbers

# Relative precision of a sum of float32 numbers, as a fraction of the sum of their absolute values.
_RESOLUTION = 2 * float(np.finfo(np.float32).eps)

LOG_PROB_RESOLUTION = {"fp32": 1e-5, "bf16": 3e-2}
"""Largest difference of log-probabilities between two passes (one with a KV cache, one without), by precision.

It is the root mean square of differences relative to the log-probability, or to 1 nat if that is larger. A single token
may differ by ten times as much. The largest measured values for six models are 8e-7 and 1.3e-2 (single tokens: 3e-6 and
5e-2), for a Llama with 15 million trained weights. The rounding is that of the logits, which are larger than
log-probabilities, especially in larger models.
"""


def bounds(values: np.ndarray | Tensor, scales: np.ndarray | Tensor | None = None) -> tuple[float, float]:
    """Largest lower bound and smallest upper bound of numbers with rounding errors.

    The numbers are constant up to rounding if the first bound does not exceed the second, since one value then fits all
    of them. Combine the bounds of several sets by ``max`` and ``min``. They are ``(-inf, inf)`` without numbers, and
    NaN with one. ``scales`` are the sums of the absolute values that were added up to each number; by default its own.
    Shape (N,).
    """
    numbers = torch.as_tensor(values, dtype=torch.float64)
    reach = _RESOLUTION * (numbers.abs() if scales is None else torch.as_tensor(scales, dtype=torch.float64))
    if not len(numbers):
        return -float("inf"), float("inf")
    low, high = torch.stack([(numbers - reach).max(), (numbers + reach).min()]).tolist()
    return low, high


def is_constant(
    values: np.ndarray | Tensor, scales: np.ndarray | Tensor | None = None, of_all_processes: bool = False
) -> bool:
    """Whether numbers (N,) are constant up to rounding; ``scales`` as for :func:`bounds`.

    With ``of_all_processes``, those of all processes are compared, and all must call this.
    """
    low, high = bounds(values, scales)
    if of_all_processes:
        low, minus_high = all_reduce_max_numbers(low, -high)
        high = -minus_high
    return low <= high


def is_rounding(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Whether each number is 0 up to rounding; ``scales`` are sums of the absolute values in it. Shape (N,) -> (N,)."""
    found: np.ndarray = np.abs(values) <= _RESOLUTION * scales
    return found


def log_probs_agree(log_probs: np.ndarray, others: np.ndarray, precision: str) -> bool:
    """Whether the log-probabilities (N,) of two passes agree in all processes up to rounding. All must call this."""
    gaps = _gaps(torch.as_tensor(log_probs), torch.as_tensor(others))
    squares, count = all_reduce_numbers(float(gaps.square().sum()), len(gaps))
    (largest,) = all_reduce_max_numbers(float(gaps.max()) if len(gaps) else 0.0)
    return bool(_are_rounding(squares / max(count, 1), largest, precision))


@torch.no_grad()
def log_probs_differ(log_probs: Tensor, others: Tensor, precision: str) -> Tensor:
    """Whether log-probabilities (N,) differ by more than rounding here, as a tensor on their device. Shape ()."""
    gaps = _gaps(log_probs, others)
    return ~_are_rounding(gaps.square().mean(), gaps.max(), precision)


def _are_rounding(mean_square: Any, largest: Any, precision: str) -> Any:
    """Whether gaps with this mean square and maximum are rounding, for numbers or tensors."""
    resolution = LOG_PROB_RESOLUTION[precision]
    return (mean_square <= resolution**2) & (largest <= 10 * resolution)


def _gaps(log_probs: Tensor, others: Tensor) -> Tensor:
    """Differences relative to the larger log-probability, or to 1 nat if that is larger. Shapes (N,), (N,) -> (N,)."""
    a, b = log_probs.double(), others.double()
    return (a - b).abs() / torch.maximum(a.abs(), b.abs()).clamp(min=1.0)
