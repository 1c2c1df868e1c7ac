"""Log-probabilities and entropies of the token distribution, always computed in float32."""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = -1e20
"""Logit of a token with probability 0. It is finite, also at the lowest temperatures, to avoid NaN in entropies."""


def scale_logits(logits: Tensor, temperature: float) -> Tensor:
    """Scale logits by the temperature, in float32, without a copy if nothing changes. Shape (..., V) -> (..., V)."""
    return logits.float() if temperature == 1.0 else logits.float() / temperature


def token_log_probs(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """Log-probability of the chosen tokens under softmax(logits / temperature).

    Args:
        logits: Scores before softmax, at the position *before* each token. Shape (..., V).
        ids: The tokens. Shape (...).
        temperature: Temperature of the policy's distribution, as in sampling.

    Returns:
        Log-probabilities in nats, float32. Shape (...).
    """
    scaled = scale_logits(logits, temperature)
    return scaled.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - scaled.logsumexp(dim=-1)


def token_entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy of softmax(logits / temperature) in nats, float32. Shape (..., V) -> (...)."""
    log_probs = scale_logits(logits, temperature).log_softmax(dim=-1)
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def mask_logits(logits: Tensor, allowed: Tensor) -> Tensor:
    """Set the probability of all other than the allowed tokens to 0.

    Args:
        logits: Shape (..., V).
        allowed: True at allowed tokens. Shape (..., V).

    Returns:
        Float32 logits with softmax 0 at all other tokens. They are finite, to avoid NaN in entropies.
    """
    # Half of the lowest number, so that subtracting a maximum does not give minus infinity.
    return logits.float().masked_fill(~allowed, torch.finfo(torch.float32).min / 2)


def expected_value(logits: Tensor, values: Tensor) -> Tensor:
    """Mean of K values under the softmax of their logits (G-Eval, Liu et al. 2023, arXiv 2303.16634, eq. 1).

    Args:
        logits: Logits of the K possible answers; others are left out. Shape (B, K).
        values: Value of each answer. Shape (K,).

    Returns:
        Shape (B,).
    """
    return (logits.float().softmax(-1) * values).sum(-1)
