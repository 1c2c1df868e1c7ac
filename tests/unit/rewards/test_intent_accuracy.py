"""The reward for the right intent, weighted with METEOR."""

from __future__ import annotations

from typing import Any

import pytest

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.metrics.meteor import MeteorMetric
from rl4dialog.rewards.intent_accuracy import IntentAccuracyReward


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
