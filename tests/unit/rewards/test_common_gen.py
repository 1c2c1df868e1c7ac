"""The penalty for repeating CommonGen's prompt."""

from __future__ import annotations

import pytest
from replies import pay

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.errors import DataError

PROMPT = "generate a sentence with: dog ball."
CASES = {
    "the dog likes its ball": 0.0,
    "Dog ball": -1.0,
    "generate a dog": -1.0,
    "this Sentence is one": -1.0,
    "": 0.0,
}


def test_repeating_the_prompt_costs_one() -> None:
    reward = RewardFunctionRegistry.get("common_gen_repeat_penalty")
    assert {text: pay(reward, text, prompt=PROMPT) for text in CASES} == CASES
    assert pay(reward, "generate", done=False, prompt=PROMPT) == 0.0


def test_batch_equals_one_by_one() -> None:
    reward = RewardFunctionRegistry.get("common_gen_repeat_penalty_batched")
    n = len(CASES)
    assert reward([PROMPT] * n, list(CASES), [[]] * n, [True] * n) == list(CASES.values())
    assert reward([PROMPT] * n, list(CASES), [[]] * n, [False] * n) == [0.0] * n


def test_other_prompts_are_refused() -> None:
    with pytest.raises(DataError, match=r"start with 'generate a sentence with: ', not 'summarize: dog'.*prefix"):
        pay(RewardFunctionRegistry.get("common_gen_repeat_penalty"), "x", prompt="summarize: dog")


@pytest.mark.parametrize("id", ["meteor", "rouge_combined", "rouge"])
def test_rl4lms_configs_add_it_to_other_rewards(id: str) -> None:
    args = {"synonyms": False} if id == "meteor" else {}
    plain = RewardFunctionRegistry.get(id, args)
    with_penalty = RewardFunctionRegistry.get(id, {**args, "shaping_fn": "common_gen_repeat_penalty"})
    for text in CASES:
        assert pay(with_penalty, text, prompt=PROMPT) == pytest.approx(pay(plain, text, prompt=PROMPT) + CASES[text])
