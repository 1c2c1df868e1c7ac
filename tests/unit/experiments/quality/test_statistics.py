"""Statistics over runs against hand-worked numbers and scipy's own."""

from __future__ import annotations

import pytest
from scipy import stats

from rl4dialog.experiments.quality.statistics import (
    at_kl,
    estimate,
    probability_of_improvement,
    smoothed,
    tokens_to_reward,
)
from rl4dialog.functional.statistics import Estimate, Interval


def test_one_run_has_no_interval() -> None:
    assert estimate([0.5]) == Estimate(0.5)
    assert estimate([0.5, 0.5]) == Estimate(0.5)  # nor have equal ones


def test_the_interval_over_runs_is_students() -> None:
    low, high = stats.ttest_1samp([1.0, 2.0, 6.0], 0.0).confidence_interval()
    assert estimate([1.0, 2.0, 6.0]) == Estimate(3.0, Interval(pytest.approx(low), pytest.approx(high)))


def test_the_probability_of_improvement_is_mann_whitneys_u() -> None:
    ours, others = [0.5, 0.7, 0.6, 0.9], [0.6, 0.4, 0.55]
    u = stats.mannwhitneyu(ours, others).statistic
    assert probability_of_improvement(ours, others).value == pytest.approx(u / 12)
    assert probability_of_improvement([1.0, 1.0], [1.0, 1.0]).value == 0.5
    assert probability_of_improvement([2.0, 3.0], [0.0, 1.0]) == Estimate(1.0)  # two runs do not make it certain


def test_a_curve_is_read_where_it_first_reaches_a_kl() -> None:
    kls, values = [0.0, 0.1, 0.05, 0.3], [1.0, 2.0, 9.0, 4.0]
    assert at_kl(kls, values, 0.05) == pytest.approx(1.5)
    assert at_kl(kls, values, 0.1) == pytest.approx(2.0)
    assert at_kl(kls, values, 0.2) == pytest.approx(9.0 + 0.6 * (4.0 - 9.0))
    assert at_kl(kls, values, 0.31) is None
    assert at_kl([], [], 0.1) is None


def test_tokens_are_counted_until_the_smoothed_reward_reaches_a_level() -> None:
    rewards, tokens = [0.0, 1.0, 2.0, 0.0, 2.0, 5.0], [10, 20, 30, 10, 20, 30]
    assert smoothed(rewards) == pytest.approx([0.0, 0.5, 1.0, 1.0, 4 / 3, 7 / 3])
    assert tokens_to_reward(rewards, tokens, 1.0) == 60
    assert tokens_to_reward(rewards, tokens, 2.0) == 120
    assert tokens_to_reward(rewards, tokens, 2.4) is None
