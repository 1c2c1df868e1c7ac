"""The reward of a classifier or reward model: its metric's scores, less a baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.metrics.learned_reward import LearnedRewardMetric
from rl4dialog.metrics.sequence_classifier import SequenceClassifier
from rl4dialog.rewards.learned_reward import LearnedReward

PROMPTS, TEXTS = ["a cat ", "hi ", "dog "], ["sat", "dog mat", "hi hi"]
REFERENCES = [["mat"], ["cat", "hi"], ["a"]]
ALL = [True] * 3

Save = Callable[[Sequence[str]], str]


@pytest.mark.parametrize("id", ["learned_reward", "learned_batched_reward"])
def test_rl4lms_arguments_give_the_metric_and_one_by_one_the_same(id: str, save_classifier: Save) -> None:
    folder = save_classifier(["bad", "good"])
    reward = RewardFunctionRegistry.get(id, {"model_name": folder, "label_ix": 1, "include_prompt_for_eval": True})
    ((expected, _),) = LearnedRewardMetric(folder, 1).compute(PROMPTS, TEXTS, REFERENCES).values()
    assert reward(PROMPTS, TEXTS, REFERENCES, ALL) == pytest.approx(expected, abs=1e-6)
    alone = [reward([p], [t], [r], [True])[0] for p, t, r in zip(PROMPTS, TEXTS, REFERENCES, strict=True)]
    assert alone == pytest.approx(expected, abs=1e-6) and len({round(score, 5) for score in alone}) == 3
    assert reward(PROMPTS, TEXTS, REFERENCES, [False, True, False]) == pytest.approx([0, alone[1], 0], abs=1e-6)


def test_outputs_are_functions_of_the_logits(save_classifier: Save) -> None:
    folder = save_classifier(["bad", "good", "neither"])
    logits = SequenceClassifier.from_pretrained(folder).logits([p + t for p, t in zip(PROMPTS, TEXTS, strict=True)])
    expected = {
        "logit": logits,
        "probability": torch.softmax(logits, -1),
        "log_probability": torch.log_softmax(logits, -1),
    }
    for output, values in expected.items():
        reward = LearnedReward(model_name=folder, label_ix="good", output=output)
        assert reward(PROMPTS, TEXTS, REFERENCES, ALL) == pytest.approx(values[:, 1].tolist(), abs=1e-5)


def test_baseline_is_subtracted(save_classifier: Save) -> None:
    folder = save_classifier(["reward"])
    plain = LearnedReward(model_name=folder)(PROMPTS, TEXTS, REFERENCES, ALL)
    fixed = LearnedReward(model_name=folder, baseline=0.5)(PROMPTS, TEXTS, REFERENCES, ALL)
    assert fixed == pytest.approx([score - 0.5 for score in plain])
    of_reference = LearnedReward(model_name=folder)(PROMPTS, [each[0] for each in REFERENCES], REFERENCES, ALL)
    less_reference = LearnedReward(model_name=folder, baseline="reference")
    found = less_reference(PROMPTS, TEXTS, REFERENCES, ALL)
    assert found == pytest.approx([a - b for a, b in zip(plain, of_reference, strict=True)], abs=1e-5)
    gold = less_reference(PROMPTS, [each[0] for each in REFERENCES], REFERENCES, ALL)
    assert gold == pytest.approx([0, 0, 0], abs=1e-5)
    with pytest.raises(DataError, match="a reference for every sample"):
        less_reference(PROMPTS, TEXTS, [[], ["a"], ["b"]], ALL)
