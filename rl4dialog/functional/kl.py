"""KL divergence between the policy and its reference: per-token penalty and sampled estimators."""

from __future__ import annotations

import numpy as np
from torch import Tensor


def kl_penalized_rewards(
    task_rewards: np.ndarray, log_probs: np.ndarray, ref_log_probs: np.ndarray, kl_coeff: float
) -> np.ndarray:
    """Subtract the KL penalty from every token: r_t = task_t - kl_coeff * (log_probs_t - ref_log_probs_t).

    Ziegler et al. 2019 (arXiv 1909.08593). In ``task_rewards``, the score of a whole reply must already be at
    its last token.

    Args:
        task_rewards: Reward of each token without the penalty. Shape (N,).
        log_probs: Log-probability of the sampled token under the policy, in nats. Shape (N,).
        ref_log_probs: The same under the frozen reference. Shape (N,).
        kl_coeff: Penalty per nat.

    Returns:
        Reward of each token. Shape (N,).
    """
    return (task_rewards - kl_coeff * (log_probs - ref_log_probs)).astype(np.float32)


def kl_estimates(log_probs: Tensor, ref_log_probs: Tensor, estimator: str = "k1") -> Tensor:
    """Sampled estimate of KL(policy || reference) per token (Schulman 2020, "Approximating KL divergence").

    ``k1`` = log ratio (unbiased, high variance), ``k2`` = half its square (biased, low variance),
    ``k3`` = exp(-log ratio) - 1 + log ratio (unbiased, never negative).

    Args:
        log_probs: Log-probabilities under the policy that sampled the tokens, in nats. Shape (...).
        ref_log_probs: Log-probabilities under the reference. Shape (...).
        estimator: ``k1``, ``k2`` or ``k3``.

    Returns:
        One estimate per token. Shape (...).

    Raises:
        ValueError: If the estimator is unknown.
    """
    log_ratio = log_probs - ref_log_probs
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    if estimator == "k3":
        return (-log_ratio).expm1() + log_ratio
    raise ValueError(f"unknown KL estimator {estimator!r}: use k1, k2 or k3")
