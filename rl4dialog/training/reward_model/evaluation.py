"""Agreement of a reward model's scores with ratings, next to baselines without a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl4dialog.core.types import Sample
from rl4dialog.functional.rank_correlation import spearman

RATING = "rating"


def ratings_of(samples: Sequence[Sample]) -> list[float]:
    """The ratings of samples of a `RatedDialogues` pool, on the model's scale."""
    return [float((sample.meta_data or {})[RATING]) for sample in samples]


def agreement(scores: Sequence[float], samples: Sequence[Sample], constant: float) -> dict[str, float]:
    """Compare scores with ratings.

    Args:
        scores: One per sample.
        samples: Rated samples.
        constant: Mean rating of the train split, the best prediction that does not read the texts.

    Returns:
        ``agreement/spearman`` of scores and ratings; ``agreement/mse``, and that of the constant as
        ``agreement/mse_of_constant``; ``length/spearman_with_rating`` and ``length/spearman_with_score``, for the
        agent's number of words. A correlation with a constant column is NaN.
    """
    predicted, ratings = np.asarray(scores, dtype=np.float64), np.asarray(ratings_of(samples))
    lengths = np.asarray([float((sample.meta_data or {})["n_words"]) for sample in samples])
    return {
        "agreement/spearman": spearman(predicted, ratings),
        "agreement/mse": float(np.mean((predicted - ratings) ** 2)),
        "agreement/mse_of_constant": float(np.mean((constant - ratings) ** 2)),
        "length/spearman_with_rating": spearman(lengths, ratings),
        "length/spearman_with_score": spearman(lengths, predicted),
    }
