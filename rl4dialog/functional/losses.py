"""Losses of policies, values and reward models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, huber_loss, logsigmoid

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


RatingLoss = Literal["squared_error", "cross_entropy"]


@dataclass(frozen=True)
class RewardModelLoss:
    """The loss of a judgement: a comparison of two texts, or a rating of one, weighted by ``rating_weight``.

    See :func:`rating_losses` and :func:`comparison_losses` for ``rating_loss`` and ``center_coef``.
    """

    rating_loss: RatingLoss = "squared_error"
    rating_weight: float = 1.0
    center_coef: float = 0.0

    def __call__(self, scores: Tensor, labels: Tensor, is_comparison: Tensor, weights: Tensor | None = None) -> Tensor:
        """Compute the sum over N judgements, C of them comparisons, for each of K models. Shape (K,).

        Args:
            scores: Scores of all first texts, then of the worse text of each comparison, in the same order. Shape (N +
                C, K).
            labels: Ratings from 0 to 1; not read where a judgement is a comparison. Shape (N,).
            is_comparison: True where two texts are compared, of which the first one is better. Shape (N,).
            weights: How often each judgement counts for each model; 1 by default. Shape (N, K).
        """
        first, worse = scores[: len(labels)], scores[len(labels) :]
        losses = torch.empty_like(first)
        losses[is_comparison] = comparison_losses(first[is_comparison], worse, self.center_coef)
        ratings = labels[~is_comparison].unsqueeze(-1)
        losses[~is_comparison] = self.rating_weight * rating_losses(first[~is_comparison], ratings, self.rating_loss)
        return (losses if weights is None else losses * weights).sum(0)


def comparison_losses(better: Tensor, worse: Tensor, center_coef: float = 0.0) -> Tensor:
    """Negative log-likelihood of choices by the model of Bradley and Terry (1952): -log sigmoid(better - worse).

    As in Ouyang et al. 2022 (arXiv 2203.02155, eq. 1). The likelihood depends on differences only; the added
    ``center_coef * (better + worse)**2`` keeps scores, in nats, near 0 (Eisenstein et al. 2023, arXiv 2312.09244).
    """
    return center_coef * (better + worse) ** 2 - logsigmoid(better - worse)


def rating_losses(scores: Tensor, ratings: Tensor, kind: RatingLoss) -> Tensor:
    """Loss of each score for a rating from 0 to 1, broadcastable to the scores.

    With ``squared_error``, the best score is the mean rating, and scores have no bounds. With ``cross_entropy``, it is
    the log-odds of the mean rating, as the scores that explain comparisons are.
    """
    if kind == "squared_error":
        return (scores - ratings) ** 2
    return binary_cross_entropy_with_logits(scores, ratings.expand_as(scores), reduction="none")
