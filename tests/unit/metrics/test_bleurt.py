"""BLEURT with a tiny BERT of random weights in the checkpoints' architecture."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.metrics.bleurt import BleurtMetric


def test_score_is_output_for_reference_and_text_of_best_reference(
    save_classifier: Callable[[Sequence[str]], str],
) -> None:
    folder = save_classifier(["rating"])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    texts, references = ["a cat sat", "hi", ""], [["a dog sat", "mat hi"], ["dog"], ["a"]]
    expected = []
    for text, own in zip(texts, references, strict=True):
        with torch.no_grad():
            expected.append(max(float(model(**tokenizer([r], [text], return_tensors="pt")).logits) for r in own))
    for batch_size in (1, 64):
        metric = BleurtMetric(model_name=folder, batch_size=batch_size)
        scores, corpus = metric.compute([""] * 3, texts, references)["semantic/bleurt"]
        assert scores == pytest.approx(expected, abs=1e-5)
        assert corpus == pytest.approx(sum(expected) / 3, abs=1e-5)


def test_missing_checkpoint_says_what_to_download() -> None:
    with pytest.raises(ModelError, match=r"'Elron/bleurt-large-512' cannot be loaded.*model_name: <folder"):
        BleurtMetric("bleurt-large-512")
    with pytest.raises(ModelError, match="'Elron/bleurt-base-128' cannot be loaded"):
        BleurtMetric()


def test_unknown_checkpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown config_name 'bleurt-bas-128'; did you mean 'bleurt-base-128'"):
        BleurtMetric("bleurt-bas-128")


def test_classifier_is_refused(save_classifier: Callable[[Sequence[str]], str]) -> None:
    with pytest.raises(ModelError, match="has 2 outputs instead of one"):
        BleurtMetric(model_name=save_classifier(["no", "yes"]))
