"""What is constant but for rounding: differences that the numbers added up cannot resolve.

Whitening divides by a deviation. Where that is rounding, it would make a full-size signal of nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rl4dialog.functional.distributed import all_reduce_max_numbers, all_reduce_numbers

# A sum of float32 numbers is known to within this share of the sum of their absolute values.
_RESOLUTION = 2 * float(np.finfo(np.float32).eps)

LOG_PROB_RESOLUTION = {"fp32": 1e-5, "bf16": 3e-2}
"""How far two passes (one with a KV cache, one without) may differ in log-probabilities, by precision: relative to the
log-probability, or to a nat, whichever is more, as root mean square. A single token may be off by ten times as much.

Measured on a Llama of 15 million trained weights, the worst of six models: 8e-7 and 1.3e-2 (single tokens 3e-6 and
5e-2). Logits, whose rounding it is, are larger than log-probabilities, the more so in larger models."""


def bounds(values: np.ndarray | Tensor, scales: np.ndarray | Tensor | None = None) -> tuple[float, float]:
    """The largest lower and the smallest upper end of what numbers may be without their rounding.

    The numbers are constant but for rounding if the first is not above the second: one number is then within reach of
    all. Bounds of several sets are combined with ``max`` and ``min``.

    Args:
        values: Shape (N,).
        scales: Sum of the absolute values of all that was added up to each; by default its own. Shape (N,).

    Returns:
        ``(-inf, inf)`` for no numbers, NaN where one is NaN.
    """
    numbers = torch.as_tensor(values, dtype=torch.float64)
    reach = _RESOLUTION * (numbers.abs() if scales is None else torch.as_tensor(scales, dtype=torch.float64))
    if not len(numbers):
        return -float("inf"), float("inf")
    return float((numbers - reach).max()), float((numbers + reach).min())


def is_constant(
    values: np.ndarray | Tensor, scales: np.ndarray | Tensor | None = None, of_all_processes: bool = False
) -> bool:
    """Whether numbers are all alike, but for rounding.

    Args:
        values: Shape (N,).
        scales: As for :func:`bounds`.
        of_all_processes: Judge the numbers of all processes together; all must call this.
    """
    low, high = bounds(values, scales)
    if of_all_processes:
        low, minus_high = all_reduce_max_numbers(low, -high)
        high = -minus_high
    return low <= high


def log_probs_agree(log_probs: np.ndarray, others: np.ndarray, precision: str) -> bool:
    """Whether two passes found the same log-probabilities in all processes, but for rounding; all must call this.

    Args:
        log_probs: Those of this process. Shape (N,).
        others: Shape (N,).
        precision: Of the passes, ``fp32`` or ``bf16``.
    """
    gaps = _gaps(torch.as_tensor(log_probs), torch.as_tensor(others))
    squares, count = all_reduce_numbers(float(gaps.square().sum()), len(gaps))
    (largest,) = all_reduce_max_numbers(float(gaps.max()) if len(gaps) else 0.0)
    resolution = LOG_PROB_RESOLUTION[precision]
    return squares <= count * resolution**2 and largest <= 10 * resolution


@torch.no_grad()
def log_probs_differ(log_probs: Tensor, others: Tensor, precision: str) -> Tensor:
    """Whether two passes found other log-probabilities in a batch of this process, and not only by rounding.

    Args:
        log_probs: Shape (N,).
        others: Shape (N,).
        precision: Of the passes, ``fp32`` or ``bf16``.

    Returns:
        A truth value on the device of the batch, so that nothing waits for it. Shape ().
    """
    gaps, resolution = _gaps(log_probs, others), LOG_PROB_RESOLUTION[precision]
    return (gaps.square().mean() > resolution**2) | (gaps.max() > 10 * resolution)


def _gaps(log_probs: Tensor, others: Tensor) -> Tensor:
    """Differences relative to the larger log-probability, or to a nat. Shapes (N,), (N,) -> (N,)."""
    a, b = log_probs.double(), others.double()
    return (a - b).abs() / torch.maximum(a.abs(), b.abs()).clamp(min=1.0)
