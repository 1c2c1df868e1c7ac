"""Rewards by overlap with the references, computed in the env workers."""

from __future__ import annotations

import pytest
from replies import REFERENCES, pay

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError


@pytest.mark.parametrize(
    ("id", "args"),
    [
        ("rouge", {}),
        ("rouge_combined", {}),
        ("rouge_l_max", {}),
        ("bleu", {}),
        ("meteor", {"synonyms": False}),
        ("sacre_bleu", {}),
        ("ter", {}),
        ("chrf", {}),
    ],
)
def test_reply_equal_to_the_reference_is_worth_about_one_and_pays_only_at_the_end(id: str, args: dict) -> None:
    reward = RewardFunctionRegistry.get(id, args)
    assert pay(reward, REFERENCES[0]) == pytest.approx(1.0, abs=0.01)
    assert pay(reward, "nothing at all here") < 0.2
    assert pay(reward, REFERENCES[0], done=False) == 0.0
    assert pay(reward, "") == pytest.approx(0.0)


def test_rouge_has_the_variant_that_was_asked_for() -> None:
    swapped = "mat the on sat cat the"
    assert pay(RewardFunctionRegistry.get("rouge", {"rouge_type": "rouge1"}), swapped) == pytest.approx(1.0)
    assert pay(RewardFunctionRegistry.get("rouge", {"rouge_type": "rouge2"}), swapped) < 1.0
    with pytest.raises(ConfigError, match=r"rouge_type: .*, got 'rouge3'; did you mean 'rouge"):
        RewardFunctionRegistry.get("rouge", {"rouge_type": "rouge3"})


def test_rouge_combined_is_the_mean_of_three() -> None:
    reply = "the mat sat on a cat"
    variants = [
        pay(RewardFunctionRegistry.get("rouge", {"rouge_type": t}), reply) for t in ("rouge1", "rouge2", "rougeL")
    ]
    assert len(set(variants)) == 3
    assert pay(RewardFunctionRegistry.get("rouge_combined"), reply) == pytest.approx(sum(variants) / 3)


def test_more_edits_are_worth_less_and_a_long_wrong_reply_less_than_nothing() -> None:
    reward = RewardFunctionRegistry.get("ter")
    assert pay(reward, "the cat sat on the dog") == pytest.approx(1 - 1 / 6)
    assert pay(reward, "x " * 12) == pytest.approx(-1.0)
