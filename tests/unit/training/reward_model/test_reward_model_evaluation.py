"""Agreement of scores with judgements, on numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rl4dialog.core.types import Sample
from rl4dialog.training.reward_model.evaluation import agreement, calibration_error, comparison_metrics


def test_choices_with_ties() -> None:
    better, worse = np.array([2.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0])
    found = comparison_metrics(better, worse, np.array([3.0, 2, 1]), np.array([2.0, 2, 5]))
    assert found["preference/accuracy"] == found["preference/accuracy_of_longer"] == pytest.approx(0.5)
    losses = [math.log(1 + math.exp(-d)) for d in (2, -1, 0)]
    assert found["preference/log_loss"] == pytest.approx(sum(losses) / 3)


def test_calibration_error_is_the_weighted_gap_of_the_bins() -> None:
    probabilities, outcomes = np.array([0.81, 0.89, 0.55, 1.0]), np.array([1.0, 0.0, 1.0, 1.0])
    assert calibration_error(probabilities, outcomes) == pytest.approx((0.7 + 0.45 + 0.0) / 4)


def test_both_kinds_have_their_numbers_and_share_the_length() -> None:
    samples = [
        Sample(0, "a", [], {"rating": 1.0, "n_words": 1}),
        Sample(1, "b", [], {"worse_text": "c", "n_words": 2, "n_words_of_worse": 3}),
        Sample(2, "d", [], {"rating": 0.0, "n_words": 4}),
    ]
    found = agreement([4.0, 3.0, 1.0], [2.0], samples, 0.5, "cross_entropy")
    assert found["preference/accuracy"] == 1 and found["preference/accuracy_of_longer"] == 0
    assert found["agreement/spearman"] == pytest.approx(1)
    assert found["rating/log_loss"] == pytest.approx((math.log(1 + math.exp(-4)) + math.log(1 + math.exp(1))) / 2)
    assert found["rating/log_loss_of_constant"] == pytest.approx(math.log(2))
    assert found["length/spearman_with_score"] == pytest.approx(-1)
    assert "agreement/mse" not in found


def test_only_comparisons_have_no_numbers_of_ratings() -> None:
    samples = [Sample(1, "b", [], {"worse_text": "c", "n_words": 2, "n_words_of_worse": 3})]
    found = agreement([3.0], [2.0], samples, None, "cross_entropy")
    assert {key.split("/")[0] for key in found} == {"preference", "length"}
