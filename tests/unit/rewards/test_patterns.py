"""Rewards for keywords and regular expressions."""

from __future__ import annotations

from typing import Any

import pytest
from replies import pay

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("match", "paid"), [("share", [0.5, 1.0, 0.0]), ("any", [1.0, 1.0, 0.0]), ("all", [0.0, 1.0, 0.0])]
)
def test_keywords_are_whole_words_in_any_case(match: str, paid: list[float]) -> None:
    reward = RewardFunctionRegistry.get("keyword", {"keywords": ["Tea", "a cup"], "match": match})
    replies = ["some tea, please", "A cup of TEA!", "steam a cupboard"]
    assert [pay(reward, reply) for reply in replies] == paid
    assert pay(reward, replies[1], done=False) == 0.0


def test_case_and_marks_count() -> None:
    reward = RewardFunctionRegistry.get("keyword", {"keywords": ["C++", "Go"], "case_sensitive": True})
    assert pay(reward, "C++ or Go") == 1.0
    assert pay(reward, "I go for C+") == 0.0


def test_keywords_of_each_sample() -> None:
    reward = RewardFunctionRegistry.get("keyword", {"meta_key": "concepts"})
    assert pay(reward, "the dog runs", meta_info={"concepts": ["dog", "run"]}) == 0.5
    for concepts in (None, [], "dog", [1]):
        with pytest.raises(DataError, match=r"meta_data\['concepts'\]"):
            pay(reward, "the dog runs", meta_info={"concepts": concepts})


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "either keywords"),
        ({"keywords": ["a"], "meta_key": "b"}, "either keywords"),
        ({"keywords": []}, "keywords: .* at least 1 item"),
        ({"keywords": "tea"}, "keywords: .*, got 'tea'"),
        ({"keywords": ["a"], "match": "alll"}, "did you mean 'all'"),
    ],
)
def test_wrong_keywords_are_refused(args: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RewardFunctionRegistry.get("keyword", args)


def test_regular_expressions() -> None:
    anywhere = RewardFunctionRegistry.get("regex", {"pattern": r"\d+ dollars"})
    whole = RewardFunctionRegistry.get("regex", {"pattern": r"\d+ dollars", "full": True})
    assert [pay(anywhere, text) for text in ("it costs 30 dollars", "30 dollars", "dollars")] == [1.0, 1.0, 0.0]
    assert [pay(whole, text) for text in ("it costs 30 dollars", "30 dollars", "dollars")] == [0.0, 1.0, 0.0]
    with pytest.raises(ConfigError, match="not a valid regular expression"):
        RewardFunctionRegistry.get("regex", {"pattern": "("})
