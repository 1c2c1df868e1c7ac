"""Log-probabilities of tokens, KL divergences, and weights of importance sampling."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

NEVER = -1e20
"""Logit of a token with probability 0. It is finite, also at the lowest temperatures, to avoid NaN in entropies."""


def scale_logits(logits: Tensor, temperature: float) -> Tensor:
    """Scale logits by the temperature, in float32, without a copy if nothing changes. Shape (..., V) -> (..., V)."""
    return logits.float() if temperature == 1.0 else logits.float() / temperature


def token_log_probs(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probability of chosen tokens ``ids`` under softmax(logits / temperature), in nats, float32.

    The logits are those at the position *before* each token. Shapes (..., V), (...) -> (...).
    """
    scaled = scale_logits(logits, temperature)
    return scaled.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(dim=-1)


def token_entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy of softmax(logits / temperature) in nats, float32. Shape (..., V) -> (...)."""
    log_probs = scale_logits(logits, temperature).log_softmax(dim=-1)
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def token_kl(log_probs: Tensor, other_log_probs: Tensor) -> Tensor:
    """KL(first || second) of two distributions over the vocabulary, in nats. Shapes (..., V), (..., V) -> (...)."""
    return (log_probs.exp() * (log_probs - other_log_probs)).sum(dim=-1)


def mask_logits(logits: Tensor, allowed: Tensor) -> Tensor:
    """Set the probability of all other than the ``allowed`` tokens to 0. Shapes (..., V), (..., V) -> (..., V).

    The logits, float32, stay finite, to avoid NaN in entropies.
    """
    # Half of the lowest number, so that subtracting a maximum does not give minus infinity.
    return logits.float().masked_fill(~allowed, torch.finfo(torch.float32).min / 2)


def expected_value(logits: Tensor, values: Tensor) -> Tensor:
    """Mean of K values under the softmax of their logits (G-Eval, Liu et al. 2023, arXiv 2303.16634, eq. 1).

    Logits of other answers are left out. Shapes (B, K), (K,) -> (B,).
    """
    return (logits.float().softmax(-1) * values).sum(-1)


def kl_penalized_rewards(
    task_rewards: np.ndarray, log_probs: np.ndarray, ref_log_probs: np.ndarray, kl_coeff: float
) -> np.ndarray:
    """Subtract the KL penalty from every token: r_t = task_t - kl_coeff * (log_probs_t - ref_log_probs_t).

    Ziegler et al. 2019 (arXiv 1909.08593). In ``task_rewards``, the score of a whole reply must already be at its last
    token. Log-probabilities of the sampled tokens are in nats. Shapes (N,) -> (N,).
    """
    return (task_rewards - kl_coeff * (log_probs - ref_log_probs)).astype(np.float32)


def kl_estimates(log_probs: Tensor, ref_log_probs: Tensor, estimator: str = "k1") -> Tensor:
    """Sampled estimate of KL(policy || reference) per token (Schulman 2020, "Approximating KL divergence").

    ``k1`` = log ratio (unbiased, high variance), ``k2`` = half its square (biased, low variance), ``k3`` = exp(-log
    ratio) - 1 + log ratio (unbiased, never negative). The policy sampled the tokens. Shapes (...), (...) -> (...).
    """
    log_ratio = log_probs - ref_log_probs
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    if estimator == "k3":
        return (-log_ratio).expm1() + log_ratio
    raise ValueError(f"unknown KL estimator {estimator!r}: use k1, k2 or k3")


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
        The weight of each token, or each of R replies, and whether it was limited. Shapes (N,), or (R,).
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
