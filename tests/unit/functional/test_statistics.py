"""Standard errors and repetitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rl4dialog.functional.statistics import ratio_standard_error, repeated_share


def test_standard_error_is_that_of_many_draws() -> None:
    rng = np.random.default_rng(0)
    means, errors = [], []
    for _ in range(400):
        counts = rng.integers(1, 12, size=200)
        sums = counts * rng.normal(0.3, 1.0, size=200)  # the tokens of a reply are all alike
        means.append(sums.sum() / counts.sum())
        errors.append(ratio_standard_error(sums, counts))
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.1)


def test_standard_error_of_one_reply_is_unknown() -> None:
    assert math.isnan(ratio_standard_error([1.0], [3]))


def test_repeated_trigrams() -> None:
    assert repeated_share(np.array([1, 2, 3, 4, 5])) == 0
    assert repeated_share(np.array([7, 7, 7, 7, 7])) == pytest.approx(2 / 3)
    assert repeated_share(np.array([7, 7, 7])) == 0


def test_standard_error_equals_its_formula() -> None:
    # Means per token: 10 of 6 tokens. Residuals 1 - 10/6, 3 - 20/6 and 6 - 30/6.
    residuals = np.array([-4, -2, 6]) / 6
    expected = residuals.std(ddof=1) / (2 * 3**0.5)
    assert ratio_standard_error([1.0, 3.0, 6.0], [1, 2, 3]) == pytest.approx(expected)
    assert ratio_standard_error([1.0, 3.0], [1, 1]) == pytest.approx(1.0)


def test_repetitions_of_other_lengths() -> None:
    assert repeated_share(np.array([7, 7, 7]), n=2) == 0.5
    assert repeated_share(np.array([7, 7, 7, 7])) == 0.5
    assert repeated_share(np.array([7, 7])) == 0
