"""RL4LMs' reward for numbers in order."""

from __future__ import annotations

import pytest
from replies import pay

from rl4dialog.catalog import RewardFunctionRegistry


def test_increasing_numbers() -> None:
    reward = RewardFunctionRegistry.get("increasing_numbers", {"min_tokens": 4})
    assert pay(reward, "1 2 3 4") == pytest.approx(1.0)
    assert pay(reward, "1 2 3 3") < 1.0
    assert pay(reward, "1 2 3 4", done=False) == 0.0
