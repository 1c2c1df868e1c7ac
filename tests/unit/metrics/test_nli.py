"""Which class is which is read from the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from rl4dialog.core.errors import ModelError
from rl4dialog.metrics.nli import NliModel
from rl4dialog.metrics.sequence_classifier import SequenceClassifier


@pytest.mark.parametrize(
    ("labels", "columns"),
    [
        (["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], [2, 0, 1]),
        (["entailment", "neutral", "contradiction"], [0, 2, 1]),
        (["SUPPORTS", "REFUTES", "NOT ENOUGH INFO"], [0, 1, 2]),
    ],
)
def test_columns_are_entailment_contradiction_neutral(
    labels: list[str], columns: list[int], save_classifier: Callable[[Sequence[str]], str]
) -> None:
    folder = save_classifier(labels)
    premises, hypotheses = ["a cat sat", "hi"], ["cat", "a dog sat"]
    found = NliModel(folder, 1, "x").probabilities(premises, hypotheses)
    probabilities = SequenceClassifier.from_pretrained(folder).logits(premises, hypotheses).softmax(-1).numpy()
    assert found == pytest.approx(probabilities[:, columns], abs=1e-6)
    assert found.sum(1) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("labels", [["LABEL_0", "LABEL_1", "LABEL_2"], ["entailment", "not_entailment"]], ids=str)
def test_labels_that_do_not_say_are_refused(labels: list[str], save_classifier: Callable[[Sequence[str]], str]) -> None:
    with pytest.raises(
        ModelError, match=rf"metric 'x'.* has no label that identifies the class .*: its labels are {labels[0]}"
    ):
        NliModel(save_classifier(labels), 1, "metric 'x'")


def test_missing_model_is_named(tmp_path: object) -> None:
    with pytest.raises(ModelError, match=r"metric 'x': NLI model .*nowhere.*roberta-large-mnli"):
        NliModel(f"{tmp_path}/nowhere", 1, "metric 'x'")
