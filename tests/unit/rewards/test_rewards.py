"""Rewards: what each pays, how they add up, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError, RewardError
from rl4dialog.core.protocols import BatchedRewardFunction, RewardFunction
from rl4dialog.metrics.meteor import MeteorMetric
from rl4dialog.rewards.intent_accuracy import IntentAccuracyReward
from rl4dialog.rewards.parts import as_parts, is_batched
from rl4dialog.rewards.scoring import check_scores, score_replies

REFERENCES = ["the cat sat on the mat"]


def over(reply: str) -> Any:
    """The state in which an episode ended."""
    return SimpleNamespace(
        prompt_or_input_text="hello", context_text=reply, target_or_reference_texts=REFERENCES, meta_info={}
    )


def pay(reward: Any, reply: str, done: bool = True) -> float:
    return float(reward(over("the"), 1, over(reply), done, {}))


# -- rewards by overlap -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("id, args", [("rouge", {}), ("bleu", {}), ("meteor", {"synonyms": False}), ("sacre_bleu", {})])
def test_reply_equal_to_the_reference_is_worth_about_one_and_pays_only_at_the_end(id: str, args: dict) -> None:
    reward = RewardFunctionRegistry.get(id, args)
    assert pay(reward, REFERENCES[0]) == pytest.approx(1.0, abs=0.01)
    assert pay(reward, "nothing at all here") < 0.2
    assert pay(reward, REFERENCES[0], done=False) == 0.0
    assert pay(reward, "") == 0.0


def test_rouge_has_the_variant_that_was_asked_for() -> None:
    swapped = "mat the on sat cat the"
    assert pay(RewardFunctionRegistry.get("rouge", {"rouge_type": "rouge1"}), swapped) == pytest.approx(1.0)
    assert pay(RewardFunctionRegistry.get("rouge", {"rouge_type": "rouge2"}), swapped) < 1.0


def test_shaping_is_added_on_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    class PerToken(RewardFunction):
        def __call__(self, *args: Any, **kwargs: Any) -> float:
            return 0.25

    monkeypatch.setitem(RewardFunctionRegistry._entries, "per_token", PerToken)
    reward = RewardFunctionRegistry.get("rouge", {"shaping_fn": "per_token"})
    assert pay(reward, REFERENCES[0], done=False) == 0.25
    assert pay(reward, REFERENCES[0]) == pytest.approx(1.25)


def test_increasing_numbers() -> None:
    reward = RewardFunctionRegistry.get("increasing_numbers", {"min_tokens": 4})
    assert pay(reward, "1 2 3 4") == pytest.approx(1.0)
    assert pay(reward, "1 2 3 3") < 1.0
    assert pay(reward, "1 2 3 4", done=False) == 0.0


# -- intent -----------------------------------------------------------------------------------------------------------


class ByLastWord:
    """A classifier whose act is the number that ends the reply; remembers what it was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[list[str], list[str]]] = []

    def predict(self, prompt_texts: list[str], reply_texts: list[str], meta_infos: Any) -> list[int]:
        self.shown.append((prompt_texts, reply_texts))
        return [int(text.split()[-1]) for text in reply_texts]


def test_intent_and_meteor_of_each_reply_itself() -> None:
    classifier = ByLastWord()
    reward = IntentAccuracyReward(True, 0.5, 0.25, classifier, synonyms=False)
    replies, references = ["the cat sat 1", "no words of it 2"], [["the cat sat"], ["the cat sat"]]
    infos = [{"intent": [1]}, {"intent": [3]}]
    meteor = MeteorMetric(synonyms=False)
    expected = [
        0.5 + 0.25 * meteor.sentence_score(replies[0], references[0]),
        0.25 * meteor.sentence_score(replies[1], references[1]),
    ]
    assert reward(["a", "b"], replies, references, [True, True], infos) == pytest.approx(expected)
    # A reply is worth the same whatever else is in the batch.
    assert reward(["a"], replies[:1], references[:1], [True], infos[:1]) == pytest.approx(expected[:1])
    assert reward.last_parts["intent"] == [1.0]
    assert reward(["a"], replies[:1], references[:1], [False], infos[:1]) == [0.0]
    assert classifier.shown[0] == (["a", "b"], replies)


def test_intent_takes_rl4lms_arguments() -> None:
    RewardFunctionRegistry.check("intent_accuracy", {"intent_coeff": 0.5, "auto_coeff": 0.5})
    intent_only = RewardFunctionRegistry.get("intent_accuracy", {"shape": False}, classifier=ByLastWord())
    assert intent_only(["a"], ["the cat sat 1"], [["the cat sat"]], [True], [{"intent": [1]}]) == [1.0]


# -- composite --------------------------------------------------------------------------------------------------------


def first(prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
    return 2.0


class Second(BatchedRewardFunction):
    def __call__(self, prompt_texts: Any, gen_texts: Any, ref_texts: Any, dones: Any, meta_infos: Any = None) -> Any:
        return np.arange(len(gen_texts))


@pytest.fixture
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RewardFunctionRegistry._entries, "first", first)
    monkeypatch.setitem(RewardFunctionRegistry._entries, "second", Second)


@pytest.mark.usefixtures("_registered")
def test_composite_is_the_weighted_sum_and_keeps_its_parts_apart() -> None:
    blocks = [{"id": "first", "weight": 3}, {"id": "second"}, {"id": "first", "name": "again", "weight": -1.0}]
    composite = RewardFunctionRegistry.get("composite", {"rewards": blocks})
    assert [(part.name, part.weight) for part in composite.parts] == [("first", 3.0), ("second", 1.0), ("again", -1.0)]
    n = 3
    assert composite(["p"] * n, ["g"] * n, [["r"]] * n, [True] * n) == pytest.approx([4.0, 5.0, 6.0])


@pytest.mark.usefixtures("_registered")
def test_composite_of_composites_multiplies_weights_and_names_twins_apart() -> None:
    inner = {"rewards": [{"id": "first", "weight": 2.0}, {"id": "first"}]}
    outer = RewardFunctionRegistry.get("composite", {"rewards": [{"id": "composite", "args": inner, "weight": 10}]})
    assert [(part.name, part.weight) for part in outer.parts] == [("first", 20.0), ("first_2", 10.0)]


@pytest.mark.parametrize(
    "rewards, words",
    [
        ([], "at least one"),
        ([{"weight": 1}], r"rewards\[0\] must be a block with an id"),
        ([{"id": "rouge", "weigth": 1}], r"rewards\[0\].weigth.*'weight'"),
        ([{"id": "rouge", "weight": "much"}], r"rewards\[0\].weight.*'much'"),
        ([{"id": "rogue"}], "'rouge'"),
    ],
)
def test_composite_says_which_block_is_wrong(rewards: list[Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        RewardFunctionRegistry.get("composite", {"rewards": rewards})


# -- what is a reward -------------------------------------------------------------------------------------------------


def test_classes_written_for_rl4lms_are_told_by_their_parameters() -> None:
    class PerToken:
        def __call__(self, prev_observation, action, current_observation, done, meta_info=None):  # type: ignore[no-untyped-def]
            return 1.0

    class Batched:
        def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):  # type: ignore[no-untyped-def]
            return [1.0] * len(gen_texts)

    assert not is_batched(as_parts(PerToken())[0].function)
    assert is_batched(as_parts(Batched())[0].function)


@pytest.mark.parametrize("reward", [3, lambda text: 1.0, "rouge"])
def test_what_is_no_reward_is_refused_with_the_right_form(reward: Any) -> None:
    with pytest.raises(ConfigError, match="prompt_text, gen_text, ref_texts, meta_info"):
        as_parts(reward, "mine")


# -- scoring ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [[1, 2.0], (1, 2), np.array([1.0, 2.0]), torch.tensor([[1.0], [2.0]]), [[1], [2]]])
def test_scores_may_be_any_kind_of_sequence(values: Any) -> None:
    assert check_scores(values, 2, "r", ["a", "b"]) == [1.0, 2.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), None, "x"])
def test_bad_score_names_reward_value_and_sample_or_is_masked(bad: Any) -> None:
    with pytest.raises(RewardError, match=r"reward 'r' returned .* for sample 'b'"):
        check_scores([1.0, bad], 2, "r", ["a", "b"])
    masked = check_scores([1.0, bad], 2, "r", ["a", "b"], on_error="mask")
    assert masked[0] == 1.0 and np.isnan(masked[1])


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 3.0]])
@pytest.mark.parametrize("on_error", ["raise", "mask"])
def test_wrong_number_of_scores_is_never_masked(values: list[float], on_error: str) -> None:
    with pytest.raises(RewardError, match=f"{len(values)} values for 2 replies"):
        check_scores(values, 2, "r", ["a", "b"], on_error)


def test_score_replies_names_the_sample_whose_reward_raised() -> None:
    def picky(prompt_text: str, gen_text: str, ref_texts: list[str], meta_info: dict[str, Any]) -> float:
        return 1.0 / len(gen_text)

    parts = as_parts(picky, "picky")
    arguments: Any = (parts, ["p", "q"], ["text", ""], [["r"], ["r"]], [{}, {}], [10, 11])
    with pytest.raises(RewardError, match="'picky' failed on sample 11: ZeroDivisionError"):
        score_replies(*arguments)
    scores = score_replies(*arguments, on_error="mask")
    assert scores.total[0] == 0.25 and np.isnan(scores.total[1])
