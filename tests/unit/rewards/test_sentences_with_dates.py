"""RL4LMs' reward for dates."""

from __future__ import annotations

from replies import pay

from rl4dialog.catalog import RewardFunctionRegistry


def test_date_is_worth_one_at_the_end() -> None:
    reward = RewardFunctionRegistry.get("sentences_with_dates")
    assert [pay(reward, text) for text in ("on 2024-12-31 at noon", "on 2024-12-3", "")] == [1.0, 0.0, 0.0]
    assert pay(reward, "2024-12-31", done=False) == 0.0
