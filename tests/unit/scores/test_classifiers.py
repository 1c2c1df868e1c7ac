"""Batches of a sequence classifier against one text at a time."""

import pytest
import torch
from tiny import make_gpt2, make_tokenizer
from transformers import GPT2Config, GPT2ForSequenceClassification, RobertaConfig

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.scores.classifiers import NliModel, SequenceClassifier, label_index, max_tokens

TEXTS = ["a cat sat", "", "hi", "dog mat dog a hi cat", "😀"]
PAIRS = ["dog", "hi hi", "", "a", "cat sat mat"]


@pytest.mark.parametrize("batch_size", [1, 2, 64])
@pytest.mark.parametrize("pairs", [None, PAIRS], ids=["texts", "pairs"])
def test_logits_are_those_of_one_text_at_a_time(batch_size, pairs, classifier_model, bert_tokenizer):
    found = SequenceClassifier(classifier_model.train(), bert_tokenizer, batch_size=batch_size).logits(TEXTS, pairs)
    for row, text in enumerate(TEXTS):
        encoded = bert_tokenizer([text], [pairs[row]] if pairs else None, return_tensors="pt")
        with torch.no_grad():
            torch.testing.assert_close(found[row], classifier_model(**encoded).logits[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("offload", "places"), [(True, ["cpu", "cpu:0", "cpu"]), (False, ["cpu:0", "cpu:0"])])
def test_an_offloaded_model_is_on_the_device_while_it_computes(
    offload, places, classifier_model, bert_tokenizer, monkeypatch
):
    expected = SequenceClassifier(classifier_model, bert_tokenizer).logits(TEXTS)
    moved_to, move = [], classifier_model.to
    monkeypatch.setattr(classifier_model, "to", lambda place: moved_to.append(place) or move(place))
    classifier = SequenceClassifier(classifier_model, bert_tokenizer, "cpu:0", offload=offload)
    assert torch.equal(classifier.logits(TEXTS), expected) and moved_to == places


def test_long_texts_are_cut(classifier_model, bert_tokenizer):
    classifier = SequenceClassifier(classifier_model, bert_tokenizer, max_length=5)
    torch.testing.assert_close(*classifier.logits(["cat sat a dog hi", "cat sat a mat mat"]).unbind())
    assert SequenceClassifier(classifier_model, bert_tokenizer).logits(["hi " * 99], ["a " * 99]).isfinite().all()


def test_positions_of_roberta_begin_after_its_padding(bert_tokenizer):
    assert max_tokens(bert_tokenizer, RobertaConfig(max_position_embeddings=514, pad_token_id=1)) == 512
    bert_tokenizer.model_max_length = 20
    assert max_tokens(bert_tokenizer, RobertaConfig(max_position_embeddings=514, pad_token_id=1)) == 20


def test_decoder_without_pad_token_is_padded_with_its_end(tmp_path):
    tokenizer = make_tokenizer()
    size = {"n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    config = GPT2Config(vocab_size=len(tokenizer), num_labels=2, eos_token_id=0, **size)
    GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    texts = ["w1 w2 w3", "w4", "w5 w6"]
    classifier = SequenceClassifier.from_pretrained(str(tmp_path))
    single = SequenceClassifier.from_pretrained(str(tmp_path), 1)
    torch.testing.assert_close(classifier.logits(texts), single.logits(texts))
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="neither a pad nor an eos token"):
        SequenceClassifier.from_pretrained(str(tmp_path))


def test_language_model_is_not_a_classifier(tmp_path):
    make_gpt2(make_tokenizer()).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"sequence classifier .*weights are missing.*score\.weight"):
        SequenceClassifier.from_pretrained(str(tmp_path))


@pytest.mark.parametrize("label", [4, -1, "mayb", True, None])
def test_unknown_label_is_refused_with_the_known_ones(label, save_classifier):
    config = SequenceClassifier.from_pretrained(save_classifier(["no", "yes", "maybe"])).model.config
    with pytest.raises(ConfigError, match=r"no class .*\(classes: 0 'no', 1 'yes', 2 'maybe'\)"):
        label_index(config, label, "metric 'x'")


@pytest.mark.parametrize(
    ("labels", "columns"),
    [
        (["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], [2, 0, 1]),
        (["entailment", "neutral", "contradiction"], [0, 2, 1]),
        (["SUPPORTS", "REFUTES", "NOT ENOUGH INFO"], [0, 1, 2]),
    ],
)
def test_columns_are_entailment_contradiction_neutral(labels, columns, save_classifier):
    folder = save_classifier(labels)
    premises, hypotheses = ["a cat sat", "hi"], ["cat", "a dog sat"]
    found = NliModel(folder, 1, "x").probabilities(premises, hypotheses)
    probabilities = SequenceClassifier.from_pretrained(folder).logits(premises, hypotheses).softmax(-1).numpy()
    assert found == pytest.approx(probabilities[:, columns], abs=1e-6)
    assert found.sum(1) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("labels", [["LABEL_0", "LABEL_1", "LABEL_2"], ["entailment", "not_entailment"]], ids=str)
def test_labels_that_do_not_say_are_refused(labels, save_classifier):
    with pytest.raises(
        ModelError, match=rf"metric 'x'.* has no label that identifies the class .*: its labels are {labels[0]}"
    ):
        NliModel(save_classifier(labels), 1, "metric 'x'")
