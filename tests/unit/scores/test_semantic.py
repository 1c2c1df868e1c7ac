"""Word vectors by hand, BERTScore and BLEURT with a tiny model."""

from math import sqrt

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.scores.semantic import (
    BertScoreMetric,
    BleurtMetric,
    EmbeddingSimilarityMetric,
    ModelEmbeddings,
    VectorFile,
    similarities,
)

LINES = "cat 1 0 0.5\ndog -1 2 0\n. . . 1 1 1\nnaïve 0 0 1\nCat 9 9 9\n"


@pytest.mark.parametrize("header", ["", "5 3\n"], ids=["glove", "word2vec"])
def test_words_are_found_as_written_or_in_lower_case(tmp_path, header):
    path = tmp_path / "vectors.txt"
    path.write_text(header + LINES, encoding="utf-8")
    vectors = VectorFile(str(path))
    assert vectors("Cat cat DOG unknown naïve").tolist() == [[9, 9, 9], [1, 0, 0.5], [-1, 2, 0], [0, 0, 1]]
    assert vectors("").shape == vectors("unknown").shape == (0, 3)


def test_file_of_another_form_is_refused(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("words\nalone\n")
    with pytest.raises(DataError, match=r"vectors\.txt is not a file of word vectors"):
        VectorFile(str(path))
    path.write_text("")
    with pytest.raises(DataError, match="is not a file of word vectors"):
        VectorFile(str(path))
    path.write_text("cat 1 2 3\ndog one two three\nmat 1 2\n")
    with pytest.raises(DataError, match="the word 'dog' does not have 3 numbers"):
        VectorFile(str(path))("dog")
    with pytest.raises(DataError, match="the word 'mat' does not have 3 numbers, as in the first line"):
        VectorFile(str(path))("mat")


def test_embeddings_of_a_model_are_those_of_its_tokens(bert_folder):
    weight = AutoModel.from_pretrained(bert_folder).get_input_embeddings().weight.detach().numpy()
    vectors = ModelEmbeddings(bert_folder)
    assert np.array_equal(vectors("a cat"), weight[[5, 6]])
    assert vectors("").shape == (0, 16)


A, B = np.array([[1.0, 0.0], [0.0, 2.0]]), np.array([[3.0, 0.0], [1.0, 1.0], [-4.0, 0.0]])


def test_similarities_by_hand():
    # The means are (1/2, 1) and (0, 1/3).
    average, greedy, extrema = similarities(A, B)
    assert average == pytest.approx(2 / sqrt(5))
    # From A: cosines 1 and 1/sqrt(2). From B: 1, 1/sqrt(2), and 0 (to the second; -1 to the first).
    assert greedy == pytest.approx(((1 + sqrt(0.5)) / 2 + (1 + sqrt(0.5)) / 3) / 2)
    assert similarities(B, A) == pytest.approx((average, greedy, extrema))
    # The zero vector is like nothing.
    assert similarities(np.zeros((1, 2)), A) == (0, 0, 0)
    # (1, 2) and (-4, 1).
    assert extrema == pytest.approx(-2 / sqrt(5 * 17))


def test_best_reference_counts_and_unknown_words_do_not(tmp_path):
    (tmp_path / "vectors.txt").write_text("a 1 0\nb 0 2\nc 3 0\nd 1 1\ne -4 0\n")
    texts, references = ["a b", "a b unknown", "", "unknown"], [["e", "c d e"], ["a b"], ["a"], ["a"]]
    found = EmbeddingSimilarityMetric(str(tmp_path / "vectors.txt")).compute([""] * 4, texts, references)
    best = np.maximum(similarities(A, B), similarities(A, B[2:]))
    for name, expected in zip(("average", "greedy", "extrema"), best, strict=True):
        scores, corpus = found[f"semantic/embedding_{name}"]
        assert scores == pytest.approx([expected, 1.0, 0.0, 0.0])
        assert corpus == pytest.approx((expected + 1) / 4)


def greedy_f1(folder, text, reference, layer):
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    states = []
    for string in (text, reference):
        with torch.no_grad():
            hidden = model(**tokenizer(string, return_tensors="pt"), output_hidden_states=True).hidden_states[layer][0]
        states.append(torch.nn.functional.normalize(hidden[1:-1], dim=-1))
    similarity = states[0] @ states[1].T
    precision, recall = similarity.max(1).values.mean(), similarity.max(0).values.mean()
    return float(2 * precision * recall / (precision + recall))


def test_score_is_f1_of_greedy_matching_for_best_reference(bert_folder):
    texts, references = ["a cat sat", "dog"], [["a dog sat", "mat hi"], ["dog"]]
    metric = BertScoreMetric(model_type=bert_folder, num_layers=1)
    scores, corpus = metric.compute(["", ""], texts, references)["semantic/bert_score"]
    expected = max(greedy_f1(bert_folder, texts[0], reference, 1) for reference in references[0])
    assert scores == pytest.approx([expected, 1.0], abs=1e-5)
    assert corpus == pytest.approx((expected + 1) / 2, abs=1e-5)


def test_blank_texts_score_0_and_long_ones_are_cut(bert_folder):
    metric = BertScoreMetric(model_type=bert_folder, num_layers=1)
    texts, references = ["", "hi", "a cat " * 50, "😀"], [["hi"], [""], ["a cat"], ["😀"]]
    scores, _ = metric.compute([""] * 4, texts, references)["semantic/bert_score"]
    assert scores[:2] == [0.0, 0.0]
    assert 0 < scores[2] <= 1
    assert scores[3] == pytest.approx(1.0, abs=1e-5)


def test_score_is_output_for_reference_and_text_of_best_reference(save_classifier):
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


@pytest.mark.parametrize(
    ("build", "args", "error", "words"),
    [
        (VectorFile, {"path": "nowhere"}, DataError, r"nowhere.*cannot be read.*glove\.6B\.zip"),
        (ModelEmbeddings, {"model_name": "./nowhere"}, ModelError, r"word vectors .*nowhere.*cannot be loaded"),
        (EmbeddingSimilarityMetric, {}, ConfigError, "either path: .*GloVe.* or model_name"),
        (EmbeddingSimilarityMetric, {"path": "x", "model_name": "y"}, ConfigError, "either path: .*or model_name"),
        (BertScoreMetric, {}, ModelError, "'roberta-large' cannot be loaded.*downloaded roberta-large> and num_layers"),
        (BertScoreMetric, {"language": "de"}, ModelError, "bert-base-multilingual-cased> and num_layers: 9"),
        (BleurtMetric, {}, ModelError, "'Elron/bleurt-base-128' cannot be loaded"),
        (BleurtMetric, {"config_name": "bleurt-large-512"}, ModelError, "Elron/bleurt-large-512.*model_name: <folder"),
    ],
)
def test_missing_files_and_models_are_named(build, args, error, words):
    with pytest.raises(error, match=words):
        build(**args)
