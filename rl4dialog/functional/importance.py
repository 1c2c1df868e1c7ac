"""Importance weights for replies that were sampled from another distribution than the policy's."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

Correction = Literal["none", "token", "sequence"]
BeyondCap = Literal["truncate", "mask"]


def sampler_weights(
    log_ratio: Tensor, replies: Tensor, level: Correction, cap: float, beyond_cap: BeyondCap
) -> tuple[Tensor, Tensor]:
    """Weights w = probability under the policy / probability under the sampler, of tokens or of whole replies.

    ``truncate`` gives min(w, cap) (truncated importance sampling: Espeholt et al. 2018, arXiv 1802.01561; Yao et al.
    2025, https://fengyao.notion.site/off-policy-rl). ``mask`` gives 0 outside [1/cap, cap], as in IcePop. The weight of
    a reply is the product over its tokens, whose variance grows with the length.

    Args:
        log_ratio: Log-probability of each token under the policy minus that under the sampler. Shape (N,).
        replies: Index of the reply of each token, without gaps. Shape (N,).
        level: ``token`` or ``sequence``.
        cap: Limit of the weights, at least 1.
        beyond_cap: ``truncate`` or ``mask``.

    Returns:
        The limited weight of each token or reply, and whether it was limited. Both have shape (N,), or (R,) for R
        replies.
    """
    if level == "sequence":
        log_ratio = log_ratio.new_zeros(int(replies[-1]) + 1).index_add(0, replies, log_ratio)
    weights = log_ratio.exp()
    if beyond_cap == "truncate":
        return weights.clamp(max=cap), weights > cap
    outside = (weights > cap) | (weights < 1 / cap)
    return weights.masked_fill(outside, 0.0), outside


def effective_share(weights_sum: float, squares_sum: float, n: float) -> float:
    """Effective sample size (sum of weights)^2 / sum of squares, as a fraction of n (Kish 1965); 0 without weights."""
    return weights_sum**2 / (squares_sum * n) if squares_sum else 0.0
