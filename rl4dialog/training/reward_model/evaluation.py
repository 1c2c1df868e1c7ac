"""Agreement of a reward model's scores with what people judged, next to baselines without a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.types import Sample
from rl4dialog.data.judged_texts import N_WORDS_OF_WORSE, RATING, is_comparison, meta_data_of
from rl4dialog.functional.rank_correlation import spearman
from rl4dialog.functional.reward_model_losses import RatingLoss

Array = NDArray[np.float64]
_N_BINS = 10
_EPSILON = 1e-6  # of probabilities, so that their logarithm is finite


def ratings_of(samples: Sequence[Sample]) -> list[float]:
    """The ratings of rated samples, from 0 to 1."""
    return [float(meta_data_of(sample)[RATING]) for sample in samples if not is_comparison(sample)]


def agreement(
    first: Sequence[float],
    worse: Sequence[float],
    samples: Sequence[Sample],
    constant: float | None,
    rating_loss: RatingLoss,
) -> dict[str, float]:
    """Compare scores with judgements.

    Args:
        first: Score of each sample's text.
        worse: Score of the worse text of each comparison, in order.
        samples: Judged samples.
        constant: Mean rating of the train split, the best prediction that does not read the texts; ``None`` if it has
            no ratings.
        rating_loss: Loss of ratings, which decides what scores are.

    Returns:
        The numbers of :func:`comparison_metrics` and :func:`rating_metrics`, as far as there are such judgements, and
        ``length/spearman_with_score``: the correlation of scores with the agent's number of words, over all texts. A
        correlation with a constant column is NaN.
    """
    scores, compared = np.asarray(first, dtype=np.float64), np.asarray([is_comparison(each) for each in samples])
    other = np.asarray(worse, dtype=np.float64)
    lengths = np.asarray([float(meta_data_of(each)["n_words"]) for each in samples])
    of_worse = np.asarray([float(meta_data_of(each)[N_WORDS_OF_WORSE]) for each in samples if is_comparison(each)])
    found: dict[str, float] = {}
    if compared.any():
        found |= comparison_metrics(scores[compared], other, lengths[compared], of_worse)
    if not compared.all():
        ratings = np.asarray(ratings_of(samples))
        found |= rating_metrics(scores[~compared], ratings, constant, rating_loss)
        found["length/spearman_with_rating"] = spearman(lengths[~compared], ratings)
    all_lengths, all_scores = np.concatenate([lengths, of_worse]), np.concatenate([scores, other])
    found["length/spearman_with_score"] = spearman(all_lengths, all_scores)
    return found


def comparison_metrics(better: Array, worse: Array, words_of_better: Array, words_of_worse: Array) -> dict[str, float]:
    """Compare scores with choices between two texts.

    Args:
        better: Scores of the better texts. Shape (N,).
        worse: Scores of the worse ones. Shape (N,).
        words_of_better: Number of words of the better replies. Shape (N,).
        words_of_worse: Number of words of the worse ones. Shape (N,).

    Returns:
        ``preference/accuracy``: share of comparisons in which the better text has the higher score, where a tie counts
        half; ``preference/accuracy_of_longer``: the same if the longer reply always wins; ``preference/log_loss`` in
        nats (a coin has 0.693); ``preference/calibration_error``: see :func:`calibration_error`, of the text with the
        higher score.
    """
    differences = better - worse
    correct = _wins(differences)
    return {
        "preference/accuracy": float(correct.mean()),
        "preference/accuracy_of_longer": float(_wins(words_of_better - words_of_worse).mean()),
        "preference/log_loss": float(np.logaddexp(0.0, -differences).mean()),
        "preference/calibration_error": calibration_error(_sigmoid(np.abs(differences)), correct),
    }


def rating_metrics(scores: Array, ratings: Array, constant: float | None, rating_loss: RatingLoss) -> dict[str, float]:
    """Compare scores with ratings.

    Args:
        scores: Shape (N,).
        ratings: From 0 to 1. Shape (N,).
        constant: Mean rating of the train split, if there is one.
        rating_loss: Loss of ratings.

    Returns:
        ``agreement/spearman`` of scores and ratings. With the squared error ``agreement/mse``, and that of the constant
        as ``agreement/mse_of_constant``. With the cross entropy ``rating/log_loss`` in nats, that of the constant as
        ``rating/log_loss_of_constant``, and ``rating/calibration_error``.
    """
    found = {"agreement/spearman": spearman(scores, ratings)}
    if rating_loss == "squared_error":
        found["agreement/mse"] = float(np.mean((scores - ratings) ** 2))
        if constant is not None:
            found["agreement/mse_of_constant"] = float(np.mean((constant - ratings) ** 2))
        return found
    found["rating/log_loss"] = float(np.mean(np.logaddexp(0.0, scores) - ratings * scores))
    if constant is not None:
        odds = log_odds(constant)
        found["rating/log_loss_of_constant"] = float(np.mean(np.logaddexp(0.0, odds) - ratings * odds))
    found["rating/calibration_error"] = calibration_error(_sigmoid(scores), ratings)
    return found


def calibration_error(probabilities: Array, outcomes: Array) -> float:
    """Expected calibration error (Guo et al. 2017, arXiv 1706.04599, eq. 3) with ten equally wide bins.

    Args:
        probabilities: Predicted probabilities. Shape (N,), N at least 1.
        outcomes: What happened, from 0 to 1. Shape (N,).

    Returns:
        Mean distance between the mean probability and the mean outcome of a bin, weighted by its number of predictions.
    """
    bins = np.minimum((probabilities * _N_BINS).astype(int), _N_BINS - 1)
    gaps = [abs(float((probabilities - outcomes)[bins == each].sum())) for each in np.unique(bins)]
    return math.fsum(gaps) / len(probabilities)


def log_odds(probability: float) -> float:
    """The score whose sigmoid is a probability; that of 0 and 1 is finite."""
    inside = min(max(probability, _EPSILON), 1 - _EPSILON)
    return math.log(inside) - math.log1p(-inside)


def _wins(differences: Array) -> Array:
    """1 for a positive difference, 0.5 for none, 0 for a negative one."""
    found: Array = (np.sign(differences) + 1) / 2
    return found


def _sigmoid(scores: Array) -> Array:
    found: Array = np.exp(-np.logaddexp(0.0, -scores))
    return found
