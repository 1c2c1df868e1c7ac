"""Rudeness as a cost."""

from __future__ import annotations

import pytest
from replies import pay

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.rewards.rudeness import RudenessReward


@pytest.mark.parametrize(("text", "level"), [("i love soups.", 0), ("duh, i love soups.", 1), ("you clown. yawn.", 2)])
def test_each_level_costs_the_scale(text: str, level: int) -> None:
    assert pay(RudenessReward(), text) == -5 * level
    assert pay(RudenessReward(scale=2), text) == -2 * level
    assert pay(RudenessReward(), text, done=False) == 0


def test_cost_can_be_paid_with_the_rude_word() -> None:
    reward = RewardFunctionRegistry.get("rudeness", {"scale": 5.0, "shaping": "every_token"})
    words = ["i", "love", "soups.", "you", "clown."]
    assert [pay(reward, " ".join(words[:n]), done=n == 5) for n in range(1, 6)] == [0, 0, 0, 0, -10]
