"""Losses of policies and values."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import huber_loss

from rl4dialog.functional.distributed import all_reduce_numbers

LossAggregation = Literal["token_mean", "sequence_mean", "constant"]


class ClipRange(NamedTuple):
    """Distances of the ratio from 1 beyond which it is clipped, downwards and upwards."""

    low: float
    high: float


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip: ClipRange, dual_clip: float | None = None) -> Tensor:
    """Negative clipped surrogate objective (eq. 7), with an upper range of its own as in DAPO (arXiv 2503.14476).

    ``ratio`` is the new over the old probability of each token; the objective is constant beyond the range. For a
    negative advantage, that is only below it: the loss grows with the ratio without limit, unless ``dual_clip`` ends it
    at so many times the advantage's size (Ye et al. 2020, arXiv 1912.09729, eq. 5). Shapes (N,), (N,) -> (N,).
    """
    clipped_ratio = ratio.clamp(1 - clip.low, 1 + clip.high)
    objective = torch.min(advantages * ratio, advantages * clipped_ratio)
    if dual_clip is not None:
        objective = torch.where(advantages < 0, objective.maximum(dual_clip * advantages), objective)
    return -objective


def clipped_weight_surrogate(ratio: Tensor, log_probs: Tensor, advantages: Tensor, clip: ClipRange) -> Tensor:
    """Negative objective of CISPO: REINFORCE with clipped importance weights (MiniMax-M1, arXiv 2506.13585).

    Unlike :func:`clipped_surrogate`, it keeps the gradient of every token, with a bounded weight. Shapes (N,) -> (N,).
    """
    return -ratio.detach().clamp(1 - clip.low, 1 + clip.high) * advantages * log_probs


def sequence_log_ratio(log_ratio: Tensor, replies: Tensor) -> Tensor:
    """Log ratio of whole replies, normalized by length (GSPO; Zheng et al. 2025, arXiv 2507.18071). Shape (N,) -> (N,).

    Its value is the mean log ratio over the reply. Its gradient at a token is that of the token's own log ratio, as in
    the paper's GSPO-token. The mean over the tokens of a reply therefore has the value and the gradient of GSPO if they
    share one advantage, and keeps the credit of each token otherwise. ``replies`` is the index of each token's reply,
    without gaps.
    """
    own = log_ratio.detach()
    sums = own.new_zeros(int(replies[-1]) + 1).index_add(0, replies, own)
    return log_ratio - own + (sums / replies.bincount())[replies]


def aggregation_weights(
    replies: Tensor, trained: Tensor, aggregation: LossAggregation, max_reply_length: int
) -> Tensor:
    """Weights of the tokens that turn a mean over all agent tokens of a minibatch into another aggregation.

    ``token_mean``: mean over the trained tokens. ``sequence_mean``: mean over the trained replies of the mean over
    their tokens (GRPO; Shao et al. 2024, arXiv 2402.03300). ``constant``: sum over the trained tokens, divided by the
    number of trained replies times their maximum length (Dr. GRPO; Liu et al. 2025, arXiv 2503.20783).

    Args:
        replies: Index of the reply of each token, without gaps, of this process. Shape (N,).
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


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip_range_vf: float | None, huber_delta: float | None = None
) -> Tensor:
    """Squared error of the value, in stable-baselines3's form. Shapes (N,), (N,), (N,) -> (N,).

    With ``clip_range_vf``, the *prediction* is clipped to within this distance of the one at rollout time, and the loss
    is the error of the clipped prediction (not the larger of the two errors, as in OpenAI's baselines). With
    ``huber_delta``, errors above it count linearly: twice the Huber loss.
    """
    if clip_range_vf is not None:
        values = old_values + (values - old_values).clamp(-clip_range_vf, clip_range_vf)
    if huber_delta is not None:
        return 2 * huber_loss(values, returns, reduction="none", delta=huber_delta)
    return (returns - values).square()
