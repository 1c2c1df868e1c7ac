"""Training the intent classifier."""

import random

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rl4dialog.core.errors import DataError, ModelError, RunFolderError
from rl4dialog.core.types import Sample
from rl4dialog.scores.intent import IntentAccuracyReward, IntentClassifier, gold_intents, intent_input
from rl4dialog.training import intent_classifier as module
from rl4dialog.training.intent_classifier import builtin_intent_classifier, train_intent_classifier

# The words that show the act; everything else is the same for all acts.
OPENINGS = {1: "the", 2: "where is", 3: "please bring", 4: "i will bring"}
THINGS = ["red book", "old lamp", "small box", "blue bag", "warm coat", "good soup", "long letter", "green chair"]
FAST = {"n_epochs": 6, "batch_size": 16, "vocab_size": 500}


def make_samples(n, seed):
    rng = random.Random(seed)
    samples = []
    for i in range(n):
        act = rng.randint(1, 4)
        last, reply = f"i like the {rng.choice(THINGS)}", f"{OPENINGS[act]} {rng.choice(THINGS)}"
        samples.append(Sample(i, f"{last} <EOU>", [reply], {"intent": [act], "history": ["hello", last]}))
    return samples


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifier")
    return folder, train_intent_classifier(make_samples(400, 0), make_samples(100, 1), folder, seed=0, **FAST)


def test_acts_are_expected_without_the_reply(tmp_path):
    # An utterance before shows the act: a question is answered, a request is accepted.
    acts = {1: "where is the lamp", 4: "please bring the lamp"}
    samples = [
        Sample(i, "", ["red book"], {"intent": [act], "history": [acts[act], "old lamp"][: 2 - i // 98]})
        for i, act in enumerate([1, 4] * 50)
    ]
    result = train_intent_classifier(samples, samples[:20], tmp_path, reads_reply=False, **FAST)
    assert result["accuracy"] == 1.0
    classifier = IntentClassifier.from_pretrained(str(tmp_path))
    assert not classifier.reads_reply and classifier.n_utterances == 2
    reward = IntentAccuracyReward(shape=False, intent_coeff=2.0, classifier=MostlyInform(), expected_by=str(tmp_path))
    infos = [{"history": [acts[act], "old lamp"]} for act in (1, 4)]  # no reference's act is needed
    expected = classifier.probabilities(["", ""], ["", ""], infos)
    same = expected[:, 0] * 0.75 + expected[:, 3] * 0.25
    assert reward(["", ""], ["a", "b"], [[], []], [True, True], infos) == pytest.approx((2 * same).tolist())
    assert reward.last_parts["intent"] == pytest.approx([0.75, 0.25], abs=0.1)


class MostlyInform:
    """A classifier for which every reply informs, or less likely makes an offer."""

    def probabilities(self, prompt_texts, reply_texts, meta_infos):
        return torch.tensor([[0.75, 0.0, 0.0, 0.25]] * len(reply_texts))


def test_scoring_gives_the_measured_accuracy(trained):
    folder, result = trained
    samples = make_samples(100, 1)
    infos = [sample.meta_data or {} for sample in samples]
    gold = gold_intents(infos)
    predicted = IntentClassifier.from_pretrained(str(folder), batch_size=7).predict(
        [sample.prompt_or_input_text for sample in samples], [sample.references[0] for sample in samples], infos
    )
    assert sum(act == other for act, other in zip(predicted, gold, strict=True)) / 100 == result["accuracy"] >= 0.9
    assert [sum(row) for row in result["confusion"]] == [gold.count(act) for act in (1, 2, 3, 4)]
    assert sum(result["confusion"][i][i] for i in range(4)) == round(100 * result["accuracy"])
    assert (result["n_train"], result["n_val"]) == (400, 100)


def test_tokenizer_keeps_the_marker_whole_and_drops_the_beginning_of_long_texts(trained):
    tokenizer = AutoTokenizer.from_pretrained(trained[0])
    ids = tokenizer(intent_input("red " * 500, "where is old lamp"), truncation=True)["input_ids"]
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert len(ids) <= 128
    assert tokens[0] == "[CLS]"
    assert tokenizer.decode(ids).endswith("<EOU> where is old lamp<EOU>")
    assert tokens.count("<EOU>") == 2


def test_same_seed_gives_the_same_weights_whatever_was_drawn_before(tmp_path):
    samples, weights = make_samples(64, 0), []
    for run in range(2):
        torch.manual_seed(run)
        train_intent_classifier(samples, samples, tmp_path / str(run), seed=3, n_epochs=1, batch_size=16)
        weights.append((tmp_path / str(run) / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_given_model_is_fine_tuned_with_its_own_tokenizer(trained, tmp_path):
    folder, _ = trained
    samples = make_samples(40, 2)
    arguments = {"model_name": str(folder), "n_epochs": 1, "learning_rate": None, "seed": 0}
    with pytest.raises(DataError, match="'val' has none"):
        train_intent_classifier(samples, [], tmp_path, **arguments)
    result = train_intent_classifier(samples, samples, tmp_path, **arguments)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert model.config.id2label == {0: "inform", 1: "question", 2: "directive", 3: "commissive"}
    assert result["accuracy"] >= 0.9
    assert (tmp_path / "tokenizer.json").is_file()


def test_dropped_words_spare_special_tokens(trained):
    tokenizer = AutoTokenizer.from_pretrained(trained[0])
    ids = tokenizer(["book <EOU>where is book<EOU>", "red <EOU>"])["input_ids"]
    examples = [{"input_ids": row, "labels": 0} for row in ids]
    batch = module._WordDropout(tokenizer, 1.0)(examples)
    first = tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    assert first == ["[CLS]", "[UNK]", "<EOU>", "[UNK]", "[UNK]", "[UNK]", "<EOU>"]
    assert batch["attention_mask"].tolist()[1] == [1, 1, 1, 0, 0, 0, 0]
    kept = module._WordDropout(tokenizer, 0.0)(examples)
    assert kept["input_ids"][0].tolist() == ids[0]


def test_builtin_classifier_is_made_once_per_content(monkeypatch):
    calls = []

    def pretend(samples, val_samples, folder, **kwargs):
        calls.append(kwargs)
        (folder / "config.json").write_text("{}")
        return {"accuracy": 0.5}

    monkeypatch.setattr(module, "train_intent_classifier", pretend)
    samples, val = make_samples(20, 0), make_samples(5, 1)
    first = builtin_intent_classifier(samples, val, seed=1)
    assert builtin_intent_classifier(samples, val, seed=1) == first
    assert len(calls) == 1
    last = samples[-1]
    assert last.meta_data is not None
    other_label = {**last.meta_data, "intent": [last.meta_data["intent"][0] % 4 + 1]}
    relabelled = [*samples[:-1], Sample(last.id, last.prompt_or_input_text, last.references, other_label)]
    others = [builtin_intent_classifier(relabelled, val, seed=1), builtin_intent_classifier(samples, val, seed=2)]
    assert len({first, *others}) == 3
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("meta_data", "references", "message"),
    [
        (None, ["x"], "meta_data"),
        ({"intent": [5]}, ["x"], r"sample 7 \(train\) has intent 5, but intents are 1 to 4"),
        ({"intent": [1]}, [], r"sample 7 \(train\) has no reference"),
    ],
)
def test_unusable_sample_is_an_error(tmp_path, meta_data, references, message):
    with pytest.raises(DataError, match=message):
        train_intent_classifier([Sample(7, "a <EOU>", references, meta_data)], make_samples(1, 0), tmp_path)


def test_samples_of_one_act_are_an_error(tmp_path):
    samples = [Sample(i, f"a {i} <EOU>", ["b"], {"intent": [2]}) for i in range(4)]
    with pytest.raises(DataError, match="all 4 samples of split 'train' have the act question: nothing to tell apart"):
        train_intent_classifier(samples, make_samples(1, 0), tmp_path)


def test_model_that_is_not_there_names_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)  # the hub's client read its variable before the test began
    with pytest.raises(ModelError, match=r"'no/such-model' cannot be loaded .* builtin/tiny-bert") as caught:
        train_intent_classifier(make_samples(5, 0), make_samples(5, 0), tmp_path, model_name="no/such-model")
    assert "\n" not in str(caught.value)


def test_output_that_cannot_be_written_is_told_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be written"):
        train_intent_classifier(make_samples(5, 0), make_samples(5, 0), tmp_path / "file" / "x")
