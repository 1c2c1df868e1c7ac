"""Input and batches of the intent classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.metrics.intent_accuracy import load_classifier
from rl4dialog.metrics.intent_classifier import IntentClassifier, intent_input, last_utterances
from rl4dialog.rewards.intent_accuracy import IntentAccuracyReward

PROMPTS = ["hi <EOU> a cat sat <EOU>", "dog", "", "cat dog hi mat sat cat", "a", "hi hi hi"]
REPLIES = ["a dog", "", "😀", "mat", "cat sat a mat hi dog", "cat"]


def test_input_has_the_published_form() -> None:
    assert intent_input(" hello there ", " hi \n") == "hello there <EOU>hi<EOU>"


@pytest.mark.parametrize(
    ("prompt", "info", "n", "expected"),
    [
        ("a<EOU>b c <EOU> ", None, 1, "b c"),
        ("a<EOU>b c <EOU> ", None, 2, "a <EOU>b c"),
        ("a<EOU>b", {"history": ["x", " y "]}, 1, "y"),
        ("a<EOU>b", {"history": ["w", "x", " y "]}, 2, "x <EOU>y"),
        ("a<EOU>b", {"history": ["x", " y "]}, 5, "x <EOU>y"),
        ("a<EOU>b", {"history": []}, 1, "b"),
        ("<EOU>", {}, 1, ""),
    ],
)
def test_last_utterances_are_of_history_or_prompt(prompt: str, info: Any, n: int, expected: str) -> None:
    assert last_utterances(prompt, info, n) == expected


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_labels_are_those_of_one_text_at_a_time(batch_size: int, classifier_model: Any, bert_tokenizer: Any) -> None:
    classifier = IntentClassifier(classifier_model.train(), bert_tokenizer, batch_size=batch_size)
    expected = []
    for prompt, reply in zip(PROMPTS, REPLIES, strict=True):
        encoded = bert_tokenizer(intent_input(last_utterances(prompt, None), reply), return_tensors="pt")
        with torch.no_grad():
            expected.append(int(classifier_model(encoded["input_ids"]).logits.argmax()) + 1)
    assert len(set(expected)) > 1
    assert classifier.predict(PROMPTS, REPLIES, None) == expected


def test_saved_classifier_predicts_the_same(tmp_path: Path, classifier_model: Any, bert_tokenizer: Any) -> None:
    classifier_model.save_pretrained(tmp_path)
    bert_tokenizer.save_pretrained(tmp_path)
    loaded = IntentClassifier.from_pretrained(str(tmp_path))
    expected = IntentClassifier(classifier_model, bert_tokenizer).predict(PROMPTS, REPLIES, [{}] * 6)
    assert loaded.predict(PROMPTS, REPLIES, [{}] * 6) == expected


def test_probabilities_are_in_the_order_of_the_acts(classifier_model: Any, bert_tokenizer: Any) -> None:
    classifier = IntentClassifier(classifier_model, bert_tokenizer)
    by_class = classifier.logits([intent_input("dog", "cat")]).softmax(-1)[0]
    torch.testing.assert_close(classifier.probabilities(["dog"], ["cat"], None)[0], by_class)
    classifier_model.config.id2label = {0: "3", 1: "1", 2: "4", 3: "2"}
    torch.testing.assert_close(classifier.probabilities(["dog"], ["cat"], None)[0], by_class[[1, 3, 0, 2]])


def test_a_classifier_that_expects_acts_does_not_read_the_reply(
    tmp_path: Path, classifier_model: Any, bert_tokenizer: Any
) -> None:
    classifier_model.config.reads_reply = False
    classifier_model.save_pretrained(tmp_path)
    bert_tokenizer.save_pretrained(tmp_path)
    loaded = load_classifier(str(tmp_path), reads_reply=False)
    one, other = loaded.probabilities(["dog", "dog"], ["cat", "hi mat"], None)
    assert torch.equal(one, other)
    with pytest.raises(ConfigError, match="was trained with --without_reply, so it cannot tell the act of a reply"):
        load_classifier(str(tmp_path))


def test_a_classifier_of_replies_expects_nothing(tmp_path: Path, classifier_model: Any, bert_tokenizer: Any) -> None:
    classifier_model.save_pretrained(tmp_path)
    bert_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"reads replies.*rl4dialog classifier --without_reply"):
        IntentAccuracyReward(classifier=object(), expected_by=str(tmp_path))


def test_long_text_is_cut_to_the_models_positions(classifier_model: Any, bert_tokenizer: Any) -> None:
    labels = IntentClassifier(classifier_model, bert_tokenizer).predict(["hi " * 100], ["cat"], None)
    assert labels[0] in (1, 2, 3, 4)


def test_missing_classifier_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere.*cannot be loaded"):
        IntentClassifier.from_pretrained(str(tmp_path / "nowhere"))
