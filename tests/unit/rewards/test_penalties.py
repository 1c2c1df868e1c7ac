"""Penalties for length, repetition and replies that do not end."""

from __future__ import annotations

from typing import Any

import pytest
from replies import pay
from tiny import make_env, make_tokenizer

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.metrics.diversity import DiversityMetric


@pytest.mark.parametrize(
    ("args", "costs"),
    [
        ({"max_length": 2}, [0, 0, 0, -0.1, -0.2]),
        ({"max_length": 2, "min_length": 2}, [-0.2, -0.1, 0, -0.1, -0.2]),
        ({"min_length": 1, "per_word": 2.0}, [-2, 0, 0, 0, 0]),
    ],
)
def test_words_too_few_and_too_many_cost(args: dict[str, Any], costs: list[float]) -> None:
    reward = RewardFunctionRegistry.get("length_penalty", args)
    assert [pay(reward, "word " * n) for n in range(5)] == pytest.approx(costs)
    assert pay(reward, "word " * 9, done=False) == 0.0


@pytest.mark.parametrize(
    "args", [{}, {"max_length": 1, "min_length": 2}, {"min_length": -1}, {"max_length": 2.5}, {"max_length": "x"}]
)
def test_lengths_must_be_a_range(args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"'length_penalty'.*(max|min)_length"):
        RewardFunctionRegistry.get("length_penalty", args)


def test_repetition_costs_what_the_metric_measures() -> None:
    texts = ["no no no no no no", "All is well here, all is well here.", "nothing twice in this"]
    (measured, _) = DiversityMetric().compute([""] * 3, texts, [[]] * 3)["diversity_metrics/seq-rep-4"]
    reward = RewardFunctionRegistry.get("repetition_penalty")
    assert measured is not None and measured[0] > measured[1] > measured[2] == 0
    assert [pay(reward, text) for text in texts] == pytest.approx([-score for score in measured])
    assert pay(RewardFunctionRegistry.get("repetition_penalty", {"n": 1}), "a b a b") == pytest.approx(-0.5)


@pytest.mark.parametrize(("tokens", "expected"), [([5, 6, 0], 0.0), ([5, 6, 7, 8, 9], -2.0), ([5, 6, 7, 8, 0], 0.0)])
def test_cut_reply_costs_at_its_last_token(tokens: list[int], expected: float) -> None:
    reward = RewardFunctionRegistry.get("missing_eos_penalty", {"penalty": 2.0})
    env = make_env(make_tokenizer(), reward_parts=[RewardPart("eos", 1.0, reward)])
    env.reset(seed=0)
    rewards = [env.step(token)[1] for token in tokens]
    assert rewards == [0.0] * (len(tokens) - 1) + [expected]


def test_missing_eos_says_that_it_needs_tokens() -> None:
    with pytest.raises(ConfigError, match="needs a reply's tokens"):
        pay(RewardFunctionRegistry.get("missing_eos_penalty"), "some words")
