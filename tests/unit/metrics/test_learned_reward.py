"""A classifier's probability, and a reward model's output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.metrics.learned_reward import LearnedRewardMetric
from rl4dialog.metrics.sequence_classifier import SequenceClassifier

PROMPTS, TEXTS = ["a cat ", "hi "], ["sat", "dog mat"]
KEY = "semantic/learned_automodel_metric"


def scores_of(folder: str, **args: Any) -> list[float]:
    scores, corpus = LearnedRewardMetric(folder, **args).compute(PROMPTS, TEXTS, [[], []])[KEY]
    assert scores is not None
    assert corpus == pytest.approx(sum(scores) / 2)
    return scores


def test_score_is_probability_of_a_class(save_classifier: Callable[[Sequence[str]], str]) -> None:
    folder = save_classifier(["bad", "good", "neither"])
    expected = SequenceClassifier.from_pretrained(folder).logits(["a cat sat", "hi dog mat"]).softmax(-1)[:, 1]
    assert scores_of(folder, label_ix=1, batch_size=1) == pytest.approx(expected.tolist(), abs=1e-6)
    assert scores_of(folder, label_ix="Good") == pytest.approx(expected.tolist(), abs=1e-6)


def test_prompt_can_be_left_out(save_classifier: Callable[[Sequence[str]], str]) -> None:
    folder = save_classifier(["bad", "good"])
    expected = SequenceClassifier.from_pretrained(folder).logits(TEXTS).softmax(-1)[:, 0]
    found = scores_of(folder, label_ix=0, include_prompt_for_eval=False)
    assert found == pytest.approx(expected.tolist(), abs=1e-6)


def test_output_of_a_reward_model_is_the_score(save_classifier: Callable[[Sequence[str]], str]) -> None:
    folder = save_classifier(["reward"])
    expected = SequenceClassifier.from_pretrained(folder).logits(["a cat sat", "hi dog mat"])[:, 0].tolist()
    assert expected[0] != expected[1]
    assert scores_of(folder) == pytest.approx(expected, abs=1e-6)
    assert scores_of(folder, label_ix=0) == pytest.approx(expected, abs=1e-6)


def test_output_is_chosen(save_classifier: Callable[[Sequence[str]], str]) -> None:
    folder = save_classifier(["bad", "good"])
    logits = SequenceClassifier.from_pretrained(folder).logits(["a cat sat", "hi dog mat"])
    outputs = {"logit": logits, "probability": logits.softmax(-1), "log_probability": logits.log_softmax(-1)}
    for output, expected in outputs.items():
        assert scores_of(folder, label_ix=1, output=output) == pytest.approx(expected[:, 1].tolist(), abs=1e-5)


def test_single_output_is_no_probability(save_classifier: Callable[[Sequence[str]], str]) -> None:
    folder = save_classifier(["reward"])
    assert scores_of(folder, output="logit") == scores_of(folder)
    with pytest.raises(ConfigError, match="'log_probability', but the model's single output is not a probability"):
        LearnedRewardMetric(folder, output="log_probability")


def test_long_prompt_loses_its_beginning(save_classifier: Callable[[Sequence[str]], str]) -> None:
    metric = LearnedRewardMetric(save_classifier(["reward"]))
    scores, _ = metric.compute(["cat " * 99, "cat " * 99], ["sat", "dog"], [[], []])[KEY]
    assert scores is not None and scores[0] != scores[1]


def test_class_must_be_given_and_exist(save_classifier: Callable[[Sequence[str]], str]) -> None:
    folder = save_classifier(["bad", "good"])
    with pytest.raises(ConfigError, match=r"needs label_ix.*\(classes: 0 'bad', 1 'good'\)"):
        LearnedRewardMetric(folder)
    with pytest.raises(ConfigError, match="no class 'goood'; did you mean 'good'"):
        LearnedRewardMetric(folder, "goood")


def test_missing_model_is_named(tmp_path: object) -> None:
    with pytest.raises(ModelError, match=r"'learned_reward': model .*nowhere.*model_name: <folder"):
        LearnedRewardMetric(f"{tmp_path}/nowhere", 0)
