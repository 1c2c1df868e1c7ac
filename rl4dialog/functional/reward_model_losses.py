"""Losses of reward models, and how well their scores are calibrated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

RatingLoss = Literal["squared_error", "cross_entropy"]


@dataclass(frozen=True)
class RewardModelLoss:
    """The loss of a judgement: a comparison of two texts, or a rating of one.

    Attributes:
        rating_loss: Loss of a rating; see :func:`rating_losses`.
        rating_weight: Weight of the loss of a rating.
        center_coef: Coefficient of the squared sum of both scores; see :func:`comparison_losses`.
    """

    rating_loss: RatingLoss = "squared_error"
    rating_weight: float = 1.0
    center_coef: float = 0.0

    def __call__(self, scores: Tensor, labels: Tensor, is_comparison: Tensor, weights: Tensor | None = None) -> Tensor:
        """Compute the sum of the losses of a batch.

        Args:
            scores: Scores of all first texts, and then of the worse text of each comparison, in the same order. Shape
                (N + C, K) for N judgements, C of them comparisons, by K models.
            labels: Ratings from 0 to 1; not read where a judgement is a comparison. Shape (N,).
            is_comparison: True where two texts are compared, of which the first one is better. Shape (N,).
            weights: How often each judgement counts for each model; 1 by default. Shape (N, K).

        Returns:
            Sum over judgements, for each model. Shape (K,).
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
    ``center_coef * (better + worse)**2`` keeps scores near 0 (Eisenstein et al. 2023, arXiv 2312.09244).

    Args:
        better: Scores of the better texts, in nats. Any shape.
        worse: Scores of the worse ones. The same shape.
        center_coef: Coefficient of the squared sum.

    Returns:
        The loss of each comparison. The same shape.
    """
    return center_coef * (better + worse) ** 2 - logsigmoid(better - worse)


def rating_losses(scores: Tensor, ratings: Tensor, kind: RatingLoss) -> Tensor:
    """Loss of ratings from 0 to 1.

    With ``squared_error``, the best score is the mean rating, and scores have no bounds. With ``cross_entropy``, it is
    the log-odds of the mean rating, as the scores that explain comparisons are.

    Args:
        scores: Any shape.
        ratings: Broadcastable to the scores.
        kind: ``squared_error`` or ``cross_entropy``.

    Returns:
        The loss of each score. The same shape as the scores.
    """
    if kind == "squared_error":
        return (scores - ratings) ** 2
    return binary_cross_entropy_with_logits(scores, ratings.expand_as(scores), reduction="none")
