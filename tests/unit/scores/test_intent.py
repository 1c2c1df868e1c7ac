"""The classifier of dialogue acts, and accuracy and rewards with a classifier of known answers."""

import pytest
import torch

from rl4dialog.catalog import RewardFunctionRegistry
from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.scores import intent
from rl4dialog.scores.meteor import MeteorMetric

PROMPTS = ["hi <EOU> a cat sat <EOU>", "dog", "", "cat dog hi mat sat cat", "a", "hi hi hi"]
REPLIES = ["a dog", "", "😀", "mat", "cat sat a mat hi dog", "cat"]


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
def test_last_utterances_are_of_history_or_prompt(prompt, info, n, expected):
    assert intent.last_utterances(prompt, info, n) == expected


@pytest.mark.parametrize("batch_size", [1, 2, 64])
def test_labels_are_those_of_one_text_at_a_time(batch_size, classifier_model, bert_tokenizer):
    classifier = intent.IntentClassifier(classifier_model.train(), bert_tokenizer, batch_size=batch_size)
    expected = []
    for prompt, reply in zip(PROMPTS, REPLIES, strict=True):
        encoded = bert_tokenizer(intent.intent_input(intent.last_utterances(prompt, None), reply), return_tensors="pt")
        with torch.no_grad():
            expected.append(int(classifier_model(encoded["input_ids"]).logits.argmax()) + 1)
    assert len(set(expected)) > 1
    assert classifier.predict(PROMPTS, REPLIES, None) == expected


def test_probabilities_are_in_the_order_of_the_acts(classifier_model, bert_tokenizer):
    classifier = intent.IntentClassifier(classifier_model, bert_tokenizer)
    by_class = classifier.logits([intent.intent_input("dog", "cat")]).softmax(-1)[0]
    torch.testing.assert_close(classifier.probabilities(["dog"], ["cat"], None)[0], by_class)
    classifier_model.config.id2label = {0: "3", 1: "1", 2: "4", 3: "2"}
    torch.testing.assert_close(classifier.probabilities(["dog"], ["cat"], None)[0], by_class[[1, 3, 0, 2]])


def test_a_classifier_that_expects_acts_does_not_read_the_reply(tmp_path, classifier_model, bert_tokenizer):
    classifier_model.config.reads_reply = False
    classifier_model.save_pretrained(tmp_path)
    bert_tokenizer.save_pretrained(tmp_path)
    loaded = intent.load_classifier(str(tmp_path), reads_reply=False)
    one, other = loaded.probabilities(["dog", "dog"], ["cat", "hi mat"], None)
    assert torch.equal(one, other)
    with pytest.raises(ConfigError, match="--without_reply` and cannot tell the act of a reply"):
        intent.load_classifier(str(tmp_path))


def test_a_classifier_of_replies_expects_nothing(tmp_path, classifier_model, bert_tokenizer):
    classifier_model.save_pretrained(tmp_path)
    bert_tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"reads replies.*rl4dialog classifier --without_reply"):
        intent.IntentAccuracyReward(classifier=object(), expected_by=str(tmp_path))


class ByLastWord:
    def __init__(self):
        self.shown = []

    def predict(self, prompt_texts, reply_texts, meta_infos):
        self.shown.append((prompt_texts, reply_texts))
        return [int(text.split()[-1]) for text in reply_texts]


def test_accuracy_is_share_of_gold_intents():
    infos = [{"intent": [1]}, {"intent": ["2", 3]}, {"intent": [4]}, {"intent": [4]}]
    found = intent.IntentAccuracyMetric(ByLastWord()).compute([""] * 4, ["1", "3", "4", "4"], [[""]] * 4, infos)
    assert found == {"intent/accuracy": ([1.0, 0.0, 1.0, 1.0], 0.75)}


@pytest.mark.parametrize("infos", [None, [{}], [{"intent": []}], [{"intent": None}]], ids=str)
def test_missing_intent_names_the_pools_that_have_it(infos):
    with pytest.raises(DataError, match="small_talk and daily_dialog"):
        intent.IntentAccuracyMetric(ByLastWord()).compute([""], ["1"], [[""]], infos)


def test_builtin_classifier_must_be_given_and_others_exist():
    with pytest.raises(ConfigError, match="builtin/intent-classifier"):
        intent.IntentAccuracyMetric()
    with pytest.raises(ModelError, match=r"nowhere.*cannot be loaded"):
        intent.IntentAccuracyMetric(model_name="./nowhere")


def test_intent_and_meteor_of_each_reply_itself():
    classifier = ByLastWord()
    reward = intent.IntentAccuracyReward(True, 0.5, 0.25, classifier, synonyms=False)
    replies, references = ["the cat sat 1", "no words of it 2"], [["the cat sat"], ["the cat sat"]]
    infos = [{"intent": [1]}, {"intent": [3]}]
    meteor = MeteorMetric(synonyms=False)
    expected = [
        0.5 + 0.25 * meteor.sentence_score(replies[0], references[0]),
        0.25 * meteor.sentence_score(replies[1], references[1]),
    ]
    assert reward(["a", "b"], replies, references, [True, True], infos) == pytest.approx(expected)
    # A reply is worth the same whatever else is in the batch.
    assert reward(["a"], replies[:1], references[:1], [True], infos[:1]) == pytest.approx(expected[:1])
    assert reward.last_parts["intent"] == [1.0]
    assert reward(["a"], replies[:1], references[:1], [False], infos[:1]) == [0.0]
    assert classifier.shown[0] == (["a", "b"], replies)


def test_half_for_the_intent_and_half_of_meteor():
    args = {"ref_model": "builtin_ref", "synonyms": False}
    reward = RewardFunctionRegistry.get("nlp_reward", args, classifier=ByLastWord())
    replies, references, infos = ["the cat 1", "the cat 2"], [["the cat"]] * 2, [{"intent": [1]}, {"intent": [1]}]
    meteor = MeteorMetric(synonyms=False)
    meteors = [meteor.sentence_score(reply, references[0]) for reply in replies]
    expected = [0.5 + 0.5 * meteors[0], 0.5 * meteors[1]]
    assert reward(["hi"] * 2, replies, references, [True] * 2, infos) == pytest.approx(expected)
    assert reward.last_parts == {"intent": [1.0, 0.0], "meteor": pytest.approx(meteors)}
