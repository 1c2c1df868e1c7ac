"""Statistics of a rollout in which all conversations fail."""

from __future__ import annotations

import pytest

from rl4dialog.core.errors import PartnerError, RewardError
from rl4dialog.rollouts.statistics import RolloutStats, check_progress


def test_a_rollout_of_failures_is_stopped_and_names_the_cause() -> None:
    stats = RolloutStats(n_masked=100)
    with pytest.raises(PartnerError, match=r"the partner failed in 51 of the first 100 .*partner_on_error: raise"):
        check_progress(stats, n_partner_failed=51)
    with pytest.raises(RewardError, match=r"the reward failed for each of the first 100 .*on_error: raise"):
        check_progress(stats, n_partner_failed=50)
    stats.last_failure = "HTTP status 401"
    with pytest.raises(
        RewardError, match=r"nothing to train on with reward_fn\.on_error: mask; the last failure: HTTP status 401"
    ):
        check_progress(stats, n_partner_failed=50)


def test_a_rollout_goes_on_while_few_failed_or_one_succeeded() -> None:
    check_progress(RolloutStats(n_masked=99), n_partner_failed=99)
    check_progress(RolloutStats(n_masked=500, episodes=[{"r": 1.0, "l": 3.0}]), n_partner_failed=0)
