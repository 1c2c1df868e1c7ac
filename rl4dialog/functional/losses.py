"""Losses of proximal policy optimization (Schulman et al. 2017, arXiv 1707.06347), per agent token.

The caller averages them over the agent tokens of the whole minibatch, so that the result does not depend on the split
into micro-batches. Weights of the tokens turn this mean into other aggregations.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from rl4dialog.functional.distributed import all_reduce_numbers

LossAggregation = Literal["token_mean", "sequence_mean", "constant"]


class ClipRange(NamedTuple):
    """Distances of the ratio from 1 beyond which it is clipped, downwards and upwards."""

    low: float
    high: float


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: ClipRange) -> Tensor:
    """Negative clipped surrogate objective (eq. 7), with an upper range of its own as in DAPO (arXiv 2503.14476).

    Args:
        ratio: New over old probability of each token. Shape (N,).
        advantages: Shape (N,).
        clip: The objective is constant beyond these ratios.

    Returns:
        Loss per token. Shape (N,).
    """
    clipped_ratio = ratio.clamp(1 - clip.low, 1 + clip.high)
    return -torch.min(advantages * ratio, advantages * clipped_ratio)


def clipped_weight_surrogate(ratio: Tensor, log_probs: Tensor, advantages: Tensor, clip: ClipRange) -> Tensor:
    """Negative objective of CISPO: REINFORCE with clipped importance weights (MiniMax-M1, arXiv 2506.13585).

    Unlike the clipped surrogate, it keeps the gradient of every token, with a bounded weight.

    Args:
        ratio: New over old probability of each token. Shape (N,).
        log_probs: New log-probability of each token. Shape (N,).
        advantages: Shape (N,).
        clip: The weight is constant beyond these ratios.

    Returns:
        Loss per token. Shape (N,).
    """
    return -ratio.detach().clamp(1 - clip.low, 1 + clip.high) * advantages * log_probs


def sequence_log_ratio(log_ratio: Tensor, replies: Tensor) -> Tensor:
    """Log ratio of whole replies, normalized by length (GSPO; Zheng et al. 2025, arXiv 2507.18071).

    Its value is the mean log ratio over the reply. Its gradient at a token is that of the token's own log ratio, as in
    the paper's GSPO-token. The mean over the tokens of a reply therefore has the value and the gradient
    of GSPO if they share one advantage, and keeps the credit of each token otherwise.

    Args:
        log_ratio: New minus old log-probability of each token. Shape (N,).
        replies: Index of the reply of each token, without gaps. Shape (N,).

    Returns:
        Shape (N,).
    """
    own = log_ratio.detach()
    sums = own.new_zeros(int(replies[-1]) + 1).index_add(0, replies, own)
    return log_ratio - own + (sums / replies.bincount())[replies]


def aggregation_weights(
    replies: Tensor, trained: Tensor, aggregation: LossAggregation, max_reply_length: int
) -> Tensor:
    """Weights of the tokens that turn a mean over all agent tokens of a minibatch into another aggregation.

    ``token_mean``: mean over the trained tokens. ``sequence_mean``: mean over the trained replies of the mean over
    their tokens (GRPO; Shao et al. 2024, arXiv 2402.03300). ``constant``: sum over the trained tokens, divided
    by the number of trained replies times their maximum length (Dr. GRPO; Liu et al. 2025, arXiv 2503.20783).

    Args:
        replies: Index of the reply of each token, without gaps; in a data-parallel run, those of this process. Shape
            (N,).
        trained: Whether the token's reply is trained. Shape (N,).
        aggregation: One of the three above.
        max_reply_length: Maximum number of tokens of a reply.

    Returns:
        Weights, 0 where ``trained`` is False; 1 for the mean over all tokens. Shape (N,).
    """
    lengths = replies.bincount()
    counts = len(replies), int(trained.sum()), len(replies[trained].unique())
    n_tokens, n_trained_tokens, n_trained = all_reduce_numbers(*counts)
    if aggregation == "token_mean":
        return trained * (n_tokens / max(n_trained_tokens, 1.0))
    divisors = lengths[replies] if aggregation == "sequence_mean" else max_reply_length
    return trained * (n_tokens / max(n_trained, 1.0)) / divisors


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
