"""Scores of reward models and classifiers against the models themselves, for replies and conversations."""

from dataclasses import replace

import pytest
import torch
from reward_models import TEXTS, save_reward_model
from tiny import WORDS, make_tokenizer
from transformers import GPT2Config, GPT2ForSequenceClassification

from rl4dialog.core.errors import ConfigError, DataError, ModelError
from rl4dialog.core.types import AGENT, PARTNER, Dialogue, Turn
from rl4dialog.data.dialogue_text import dialogue_text
from rl4dialog.scores import reward_models
from rl4dialog.scores.classifiers import SequenceClassifier
from rl4dialog.training.tiny_bert import tiny_bert, train_tokenizer

INFOS = [{"history": ["hello", "oh", "fine"]}, {"history": ["hello there"]}]


def scores_of_model(name, prompts, replies, infos):
    (scores, _) = reward_models.LearnedRewardMetric(name).compute(prompts, replies, [[], []], infos).popitem()[1]
    return scores


def test_metric_scores_the_texts_of_the_training(tmp_path):
    name = save_reward_model(tmp_path / "run" / "model", context_size=1)
    found = scores_of_model(name, ["fine <EOU>", "hello there <EOU>"], ["good", "how are you?"], INFOS)
    texts = ["User: fine\nAssistant: good", "User: hello there\nAssistant: how are you?"]
    expected = SequenceClassifier.from_pretrained(name, truncation_side="left").logits(texts)[:, 0]
    assert found == pytest.approx(expected.tolist(), abs=1e-6) and found[0] != pytest.approx(found[1])
    assert scores_of_model(str(tmp_path / "run"), ["", ""], ["good", "how are you?"], INFOS) == found


@pytest.mark.parametrize(
    ("saved", "args", "words"),
    [
        ({"unit": "dialogue"}, {}, "scores whole dialogues; use it as the reward conversation_reward_model"),
        ({"format": "other"}, {}, "format 'other', but this version writes 'speaker_lines'; train it again"),
        ({}, {"label_ix": 0}, "have no meaning with the reward model"),
        ({}, {"output": "logit"}, "have no meaning with the reward model"),
        ({}, {"include_prompt_for_eval": False}, "have no meaning with the reward model"),
        ({}, {"std_penalty": 1.0}, "std_penalty is 1, but .* is a single model; .*alg.ensemble: 3"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, saved, args, words):
    with pytest.raises(ConfigError, match=words):
        reward_models.LearnedRewardMetric(save_reward_model(tmp_path, **saved), **args)


def test_folder_without_or_with_a_damaged_card_is_an_error(tmp_path):
    with pytest.raises(ModelError, match=r"has no reward_model.json\). Use the folder of a run with alg.id"):
        reward_models.load_reward_model(str(tmp_path), "reply", 8, "reward")
    name = save_reward_model(tmp_path)
    (tmp_path / reward_models.CARD_FILE).write_text("{")
    with pytest.raises(ModelError, match=r"reward_model.json is damaged"):
        reward_models.load_reward_model(name, "reply", 8, "reward")


def test_score_of_an_ensemble_is_the_mean_minus_the_penalty(tmp_path):
    name = save_reward_model(tmp_path, n_members=3, offsets=[0.1, 0.0, -0.1])
    texts = ["User: fine\nAssistant: good", "User: hello"]
    own = [
        SequenceClassifier.from_pretrained(str(tmp_path / f"member_{i}"), truncation_side="left").logits(texts)[:, 0]
        for i in range(3)
    ]
    by_member = torch.stack(own, dim=-1).double()
    model = reward_models.load_reward_model(name, "reply", 8, "reward", std_penalty=2.0)
    assert model.scores(texts) == pytest.approx(by_member.mean(-1).tolist(), abs=1e-6)
    shifted = by_member - torch.tensor([0.1, 0.0, -0.1], dtype=torch.float64)
    expected = by_member.mean(-1) - 2.0 * shifted.std(-1, unbiased=False)
    assert model.scores(texts, 2.0) == pytest.approx(expected.tolist(), abs=1e-6)
    assert model.scores([], 2.0) == []
    differences = (by_member[:1] - by_member[1:]) / model.card.std
    assert model.differences(texts[:1], texts[1:])[0] == pytest.approx(differences[0].tolist(), abs=1e-5)
    standard = shifted / model.card.std
    assert model.standard_scores(texts) == pytest.approx(standard.numpy(), abs=1e-5)


def test_model_with_two_outputs_is_an_error(tmp_path):
    name = save_reward_model(tmp_path)
    tokenizer = train_tokenizer(TEXTS, 300, 64)
    tiny_bert(tokenizer, num_labels=2).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has 2 outputs, but a reward model has one"):
        reward_models.LearnedRewardMetric(name)


@pytest.mark.parametrize("with_end", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad_is_eos", [True, False])
def test_decoder_scores_the_last_real_token_whatever_the_padding(pad_is_eos, side, with_end):
    tokenizer = make_tokenizer(pad_is_eos)
    tokenizer.padding_side = side
    torch.manual_seed(0)
    size = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 32, "initializer_range": 0.2}
    config = GPT2Config(vocab_size=len(tokenizer), num_labels=1, pad_token_id=tokenizer.pad_token_id, **size)
    model = GPT2ForSequenceClassification(config).eval()
    texts = [" ".join(WORDS[: 2 + i]) + (f" {tokenizer.eos_token}" if with_end else "") for i in range(5)]
    together = SequenceClassifier(model, tokenizer).logits(texts)[:, 0]
    for text, score in zip(texts, together, strict=True):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        own = model.score(model.transformer(ids).last_hidden_state[0, -1])
        assert score.item() == pytest.approx(own.item(), abs=1e-5)


TWO_PROMPTS, TWO_TEXTS = ["a cat ", "hi "], ["sat", "dog mat"]
KEY = "semantic/learned_automodel_metric"


def scores_of(folder, **args):
    scores, corpus = reward_models.LearnedRewardMetric(folder, **args).compute(TWO_PROMPTS, TWO_TEXTS, [[], []])[KEY]
    assert corpus == pytest.approx(sum(scores) / 2)
    return scores


def test_score_is_probability_of_a_class(save_classifier):
    folder = save_classifier(["bad", "good", "neither"])
    expected = SequenceClassifier.from_pretrained(folder).logits(["a cat sat", "hi dog mat"]).softmax(-1)[:, 1]
    assert scores_of(folder, label_ix=1, batch_size=1) == pytest.approx(expected.tolist(), abs=1e-6)
    assert scores_of(folder, label_ix="Good") == pytest.approx(expected.tolist(), abs=1e-6)


def test_output_of_a_reward_model_is_the_score(save_classifier):
    folder = save_classifier(["reward"])
    expected = SequenceClassifier.from_pretrained(folder).logits(["a cat sat", "hi dog mat"])[:, 0].tolist()
    assert expected[0] != expected[1]
    assert scores_of(folder) == pytest.approx(expected, abs=1e-6)
    for args in ({"label_ix": 0}, {"output": "logit"}):
        assert scores_of(folder, **args) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ConfigError, match="'log_probability', but the model's single output is not a probability"):
        reward_models.LearnedRewardMetric(folder, output="log_probability")


def test_output_is_chosen(save_classifier):
    folder = save_classifier(["bad", "good"])
    logits = SequenceClassifier.from_pretrained(folder).logits(["a cat sat", "hi dog mat"])
    outputs = {"logit": logits, "probability": logits.softmax(-1), "log_probability": logits.log_softmax(-1)}
    for output, expected in outputs.items():
        assert scores_of(folder, label_ix=1, output=output) == pytest.approx(expected[:, 1].tolist(), abs=1e-5)


def test_class_and_model_must_be_given_and_exist(save_classifier):
    with pytest.raises(ModelError, match=r"'learned_reward': model .*nowhere.*model_name: <folder"):
        reward_models.LearnedRewardMetric("./nowhere", 0)
    folder = save_classifier(["bad", "good"])
    with pytest.raises(ConfigError, match=r"needs label_ix.*\(classes: 0 'bad', 1 'good'\)"):
        reward_models.LearnedRewardMetric(folder)
    with pytest.raises(ConfigError, match="no class 'goood'; did you mean 'good'"):
        reward_models.LearnedRewardMetric(folder, "goood")


THREE_PROMPTS, THREE_TEXTS = ["a cat ", "hi ", "dog "], ["sat", "dog mat", "hi hi"]
REFERENCES = [["mat"], ["cat", "hi"], ["a"]]
ALL = [True] * 3


def test_baseline_is_subtracted(save_classifier):
    folder = save_classifier(["reward"])
    plain = reward_models.LearnedReward(model_name=folder)(THREE_PROMPTS, THREE_TEXTS, REFERENCES, ALL)
    fixed = reward_models.LearnedReward(model_name=folder, baseline=0.5)(THREE_PROMPTS, THREE_TEXTS, REFERENCES, ALL)
    assert fixed == pytest.approx([score - 0.5 for score in plain])
    of_reference = reward_models.LearnedReward(model_name=folder)(
        THREE_PROMPTS, [each[0] for each in REFERENCES], REFERENCES, ALL
    )
    less_reference = reward_models.LearnedReward(model_name=folder, baseline="reference")
    found = less_reference(THREE_PROMPTS, THREE_TEXTS, REFERENCES, ALL)
    assert found == pytest.approx([a - b for a, b in zip(plain, of_reference, strict=True)], abs=1e-5)
    gold = less_reference(THREE_PROMPTS, [each[0] for each in REFERENCES], REFERENCES, ALL)
    assert gold == pytest.approx([0, 0, 0], abs=1e-5)
    with pytest.raises(DataError, match="a reference for every sample"):
        less_reference(THREE_PROMPTS, THREE_TEXTS, [[], ["a"], ["b"]], ALL)


TURNS = tuple(
    Turn(text, speaker)
    for text, speaker in [
        ("hello there", PARTNER),
        ("how are you?", AGENT),
        ("fine", PARTNER),
        ("good to know", AGENT),
        ("hello", PARTNER),
    ]
)
DIALOGUE = Dialogue(1, TURNS, n_given=1)
OTHER = replace(DIALOGUE, turns=TURNS[:3])


def scores_of_conversations(name, *dialogues):
    classifier = SequenceClassifier.from_pretrained(name, truncation_side="left")
    return [classifier.logits([dialogue_text(dialogue)])[0, 0].item() for dialogue in dialogues]


def test_changes_by_turn_sum_to_the_score(tmp_path):
    name = save_reward_model(tmp_path, "dialogue")
    first, last = scores_of_conversations(name, OTHER, DIALOGUE)
    found = reward_models.ConversationRewardModel(name, "every_turn")([OTHER, DIALOGUE], [False, True])
    assert found == [0.0, pytest.approx([first, last - first], abs=1e-6)]
