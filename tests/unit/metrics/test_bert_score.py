"""BERTScore with a tiny BERT of random weights."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from rl4dialog.core.errors import ModelError
from rl4dialog.metrics.bert_score import BertScoreMetric


def greedy_f1(folder: str, text: str, reference: str, layer: int) -> float:
    """BERTScore from its definition: greedy matching of cosine similarities, both ways, without the special tokens."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    states = []
    for string in (text, reference):
        with torch.no_grad():
            hidden = model(**tokenizer(string, return_tensors="pt"), output_hidden_states=True).hidden_states[layer][0]
        states.append(torch.nn.functional.normalize(hidden[1:-1], dim=-1))
    similarity = states[0] @ states[1].T
    precision, recall = similarity.max(1).values.mean(), similarity.max(0).values.mean()
    return float(2 * precision * recall / (precision + recall))


def test_score_is_f1_of_greedy_matching_for_best_reference(bert_folder: str) -> None:
    texts, references = ["a cat sat", "dog"], [["a dog sat", "mat hi"], ["dog"]]
    metric = BertScoreMetric(model_type=bert_folder, num_layers=1)
    scores, corpus = metric.compute(["", ""], texts, references)["semantic/bert_score"]
    expected = max(greedy_f1(bert_folder, texts[0], reference, 1) for reference in references[0])
    assert scores == pytest.approx([expected, 1.0], abs=1e-5)
    assert corpus == pytest.approx((expected + 1) / 2, abs=1e-5)


def test_blank_texts_score_0_and_long_ones_are_cut(bert_folder: str) -> None:
    metric = BertScoreMetric(model_type=bert_folder, num_layers=1)
    texts, references = ["", "hi", "a cat " * 50, "😀"], [["hi"], [""], ["a cat"], ["😀"]]
    scores, _ = metric.compute([""] * 4, texts, references)["semantic/bert_score"]
    assert scores is not None
    assert scores[:2] == [0.0, 0.0]
    assert 0 < scores[2] <= 1
    assert scores[3] == pytest.approx(1.0, abs=1e-5)


def test_missing_model_is_named(tmp_path: object) -> None:
    with pytest.raises(
        ModelError,
        match=r"'bert_score': model .*nowhere' cannot be loaded.*downloaded roberta-large> and num_layers: 17",
    ):
        BertScoreMetric(model_type=f"{tmp_path}/nowhere", num_layers=1)


def test_missing_model_of_a_language_says_what_to_download() -> None:
    with pytest.raises(
        ModelError, match=r"model 'roberta-large' cannot be loaded.*folder of a downloaded roberta-large>"
    ):
        BertScoreMetric()
    with pytest.raises(ModelError, match=r"downloaded bert-base-multilingual-cased> and num_layers: 9"):
        BertScoreMetric(language="de")


def test_known_folder_without_layer_is_refused(bert_folder: str) -> None:
    with pytest.raises(ModelError, match="num_layers"):
        BertScoreMetric(model_type=bert_folder)
