"""Losses of proximal policy optimization (Schulman et al. 2017, arXiv 1707.06347), per agent token.

They are returned per token: the caller takes the mean over the agent tokens of the whole minibatch, which stays the
same however the minibatch is cut into micro-batches.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_range: float) -> Tensor:
    """Negative clipped surrogate objective (eq. 7).

    Args:
        ratio: New over old probability of each token. Shape (N,).
        advantages: Shape (N,).
        clip_range: The ratio's distance from 1 beyond which there is nothing more to gain.

    Returns:
        Loss per token. Shape (N,).
    """
    clipped_ratio = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -torch.min(advantages * ratio, advantages * clipped_ratio)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip_range_vf: float | None) -> Tensor:
    """Squared error of the value, in stable-baselines3's form.

    With ``clip_range_vf`` the *prediction* is kept within that distance of the old one, and the error of the clipped
    prediction counts (not the larger of the two errors, as in OpenAI's baselines).

    Args:
        values: New predictions. Shape (N,).
        old_values: Predictions at rollout time. Shape (N,).
        returns: Targets. Shape (N,).
        clip_range_vf: Largest change that counts, in units of the reward; ``None`` for no clipping.

    Returns:
        Loss per token. Shape (N,).
    """
    if clip_range_vf is not None:
        values = old_values + (values - old_values).clamp(-clip_range_vf, clip_range_vf)
    return (returns - values).square()
