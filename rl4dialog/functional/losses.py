"""Losses of proximal policy optimization (Schulman et al. 2017, arXiv 1707.06347), per agent token.

The caller averages them over the agent tokens of the whole minibatch, so that the result does not depend on the split
into micro-batches.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """Negative clipped surrogate objective (eq. 7).

    Args:
        ratio: New over old probability of each token. Shape (N,).
        advantages: Shape (N,).
        clip_range: Distance of the ratio from 1 beyond which the objective is constant.

    Returns:
        Loss per token. Shape (N,).
    """
    clipped_ratio = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -torch.min(advantages * ratio, advantages * clipped_ratio)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip_range_vf: float | None) -> Tensor:
    """Squared error of the value, in stable-baselines3's form.

    With ``clip_range_vf``, the *prediction* is clipped to within this distance of the old one, and the loss is the
    error of the clipped prediction (not the larger of the two errors, as in OpenAI's baselines).

    Args:
        values: New predictions. Shape (N,).
        old_values: Predictions at rollout time. Shape (N,).
        returns: Targets. Shape (N,).
        clip_range_vf: Maximum change, in units of the reward; ``None`` for no clipping.

    Returns:
        Loss per token. Shape (N,).
    """
    if clip_range_vf is not None:
        values = old_values + (values - old_values).clamp(-clip_range_vf, clip_range_vf)
    return (returns - values).square()
