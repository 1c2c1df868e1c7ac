"""Scores by plain rules, by hand."""

import pytest
from replies import pay
from tiny import make_env, make_tokenizer

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.scores.diversity import DiversityMetric
from rl4dialog.scores.rules import DatesMetric, IncreasingNumbersMetric, LengthMetric, increasing_numbers_score


def test_scores_of_texts_made_by_hand():
    found = LengthMetric().compute(["", ""], ["a  b\nc.", ""], [[""], [""]])
    assert found == {"length/words": ([3.0, 0.0], 1.5)}
    found = IncreasingNumbersMetric(2).compute(["", ""], ["1 2", "x"], [[""], [""]])
    assert found == {"synthetic/increasing_numbers_in_text": ([1.0, 0.0], 0.5)}
    texts = ["on 2024-12-31 at noon", "2024-1-31", "12-31-2024", "x1999-00-99y"]
    found = DatesMetric().compute([""] * 4, texts, [[]] * 4)
    assert found == {"synthetic/dates_in_text": ([1.0, 0.0, 0.0, 1.0], 0.5)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 2 3 4", 1.0),
        ("1 2", 0.5),
        ("1 2 2 4", 0.5),
        ("1 two 3 4", 0.25),
        ("x 1 2 3", 0.0),
        ("", 0.0),
        ("1 2 3 4 5 5 6 7", 5 / 8),
        ("-2 0.5 nan 4", 0.5),
    ],
)
def test_increasing_prefix_is_divided_by_length(text, expected):
    assert increasing_numbers_score(text, min_tokens=4) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("match", "paid"), [("share", [0.5, 1.0, 0.0]), ("any", [1.0, 1.0, 0.0]), ("all", [0.0, 1.0, 0.0])]
)
def test_keywords_are_whole_words_in_any_case(match, paid):
    reward = RewardFunctionRegistry.get("keyword", {"keywords": ["Tea", "a cup"], "match": match})
    replies = ["some tea, please", "A cup of TEA!", "steam a cupboard"]
    assert [pay(reward, reply) for reply in replies] == paid
    assert pay(reward, replies[1], done=False) == 0.0


def test_case_and_marks_count():
    reward = RewardFunctionRegistry.get("keyword", {"keywords": ["C++", "Go"], "case_sensitive": True})
    assert pay(reward, "C++ or Go") == 1.0
    assert pay(reward, "I go for C+") == 0.0
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
def test_wrong_keywords_are_refused(args, words):
    with pytest.raises(ConfigError, match=words):
        RewardFunctionRegistry.get("keyword", args)


def test_regular_expressions():
    anywhere = RewardFunctionRegistry.get("regex", {"pattern": r"\d+ dollars"})
    whole = RewardFunctionRegistry.get("regex", {"pattern": r"\d+ dollars", "full": True})
    assert [pay(anywhere, text) for text in ("it costs 30 dollars", "30 dollars", "dollars")] == [1.0, 1.0, 0.0]
    assert [pay(whole, text) for text in ("it costs 30 dollars", "30 dollars", "dollars")] == [0.0, 1.0, 0.0]
    with pytest.raises(ConfigError, match=r"args\.pattern: input should be a regular expression"):
        RewardFunctionRegistry.check("regex", {"pattern": "("}, "reward_fn.args")
    for always in ("", "x*", r"[\s\S]?"):
        with pytest.raises(ConfigError, match="matches every text, so the reward is always 1"):
            RewardFunctionRegistry.get("regex", {"pattern": always})
    for useful in (r"\S", "^.$"):
        RewardFunctionRegistry.get("regex", {"pattern": useful})
    empty_or_yes = RewardFunctionRegistry.get("regex", {"pattern": "(yes)?", "full": True})
    assert [pay(empty_or_yes, text) for text in ("", "yes", "no")] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("args", "costs"),
    [
        ({"max_length": 2}, [0, 0, 0, -0.1, -0.2]),
        ({"max_length": 2, "min_length": 2}, [-0.2, -0.1, 0, -0.1, -0.2]),
        ({"min_length": 1, "per_word": 2.0}, [-2, 0, 0, 0, 0]),
    ],
)
def test_words_too_few_and_too_many_cost(args, costs):
    reward = RewardFunctionRegistry.get("length_penalty", args)
    assert [pay(reward, "word " * n) for n in range(5)] == pytest.approx(costs)
    assert pay(reward, "word " * 9, done=False) == 0.0


@pytest.mark.parametrize(
    "args", [{}, {"max_length": 1, "min_length": 2}, {"min_length": -1}, {"max_length": 2.5}, {"max_length": "x"}]
)
def test_lengths_must_be_a_range(args):
    with pytest.raises(ConfigError, match=r"'length_penalty'.*(max|min)_length"):
        RewardFunctionRegistry.get("length_penalty", args)


def test_repetition_costs_what_the_metric_measures():
    texts = ["no no no no no no", "All is well here, all is well here.", "nothing twice in this"]
    (measured, _) = DiversityMetric().compute([""] * 3, texts, [[]] * 3)["diversity_metrics/seq-rep-4"]
    reward = RewardFunctionRegistry.get("repetition_penalty")
    assert measured is not None and measured[0] > measured[1] > measured[2] == 0
    assert [pay(reward, text) for text in texts] == pytest.approx([-score for score in measured])
    assert pay(RewardFunctionRegistry.get("repetition_penalty", {"n": 1}), "a b a b") == pytest.approx(-0.5)


@pytest.mark.parametrize(("tokens", "expected"), [([5, 6, 0], 0.0), ([5, 6, 7, 8, 9], -2.0), ([5, 6, 7, 8, 0], 0.0)])
def test_cut_reply_costs_at_its_last_token(tokens, expected):
    reward = RewardFunctionRegistry.get("missing_eos_penalty", {"penalty": 2.0})
    env = make_env(make_tokenizer(), reward_parts=[RewardPart("eos", 1.0, reward)])
    env.reset(seed=0)
    rewards = [env.step(token)[1] for token in tokens]
    assert rewards == [0.0] * (len(tokens) - 1) + [expected]


def test_missing_eos_says_that_it_needs_tokens():
    with pytest.raises(ConfigError, match="needs a reply's tokens"):
        pay(RewardFunctionRegistry.get("missing_eos_penalty"), "some words")
