"""OpenRL's reward."""

from __future__ import annotations

from typing import Any

import pytest

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.metrics.meteor import MeteorMetric


class ByLastWord:
    """A classifier whose act is the number that ends the reply."""

    def predict(self, prompt_texts: list[str], reply_texts: list[str], meta_infos: Any) -> list[int]:
        return [int(text.split()[-1]) for text in reply_texts]


def test_half_for_the_intent_and_half_of_meteor() -> None:
    args = {"ref_model": "builtin_ref", "synonyms": False}
    reward = RewardFunctionRegistry.get("nlp_reward", args, classifier=ByLastWord())
    replies, references, infos = ["the cat 1", "the cat 2"], [["the cat"]] * 2, [{"intent": [1]}, {"intent": [1]}]
    meteor = MeteorMetric(synonyms=False)
    meteors = [meteor.sentence_score(reply, references[0]) for reply in replies]
    expected = [0.5 + 0.5 * meteors[0], 0.5 * meteors[1]]
    assert reward(["hi"] * 2, replies, references, [True] * 2, infos) == pytest.approx(expected)
    assert reward.last_parts == {"intent": [1.0, 0.0], "meteor": pytest.approx(meteors)}
