"""Reward models of a run: their card, and the texts that they are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from reward_models import TEXTS, save_reward_model
from tiny import WORDS, make_tokenizer
from transformers import GPT2Config, GPT2ForSequenceClassification

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.metrics.learned_reward import LearnedRewardMetric
from rl4dialog.metrics.reward_model import CARD_FILE, load_reward_model, reward_model_folder
from rl4dialog.metrics.sequence_classifier import SequenceClassifier
from rl4dialog.rewards.learned_reward import LearnedReward
from rl4dialog.training.tiny_bert import tiny_bert, train_tokenizer

INFOS: list[dict[str, Any]] = [{"history": ["hello", "oh", "fine"]}, {"history": ["hello there"]}]


def scores_of(name: str, prompts: list[str], replies: list[str], infos: Any) -> list[float]:
    (scores, _) = LearnedRewardMetric(name).compute(prompts, replies, [[], []], infos).popitem()[1]
    assert scores is not None
    return scores


def test_metric_scores_the_texts_of_the_training(tmp_path: Path) -> None:
    name = save_reward_model(tmp_path / "run" / "model", context_size=1)
    found = scores_of(name, ["fine <EOU>", "hello there <EOU>"], ["good", "how are you?"], INFOS)
    texts = ["User: fine\nAssistant: good", "User: hello there\nAssistant: how are you?"]
    expected = SequenceClassifier.from_pretrained(name, truncation_side="left").logits(texts)[:, 0]
    assert found == pytest.approx(expected.tolist(), abs=1e-6) and found[0] != pytest.approx(found[1])
    assert scores_of(str(tmp_path / "run"), ["", ""], ["good", "how are you?"], INFOS) == found


def test_folder_is_that_of_the_model_or_of_the_run(tmp_path: Path) -> None:
    model = tmp_path / "run" / "model"
    save_reward_model(model)
    assert reward_model_folder(str(tmp_path / "run")) == reward_model_folder(str(model)) == model
    assert reward_model_folder(str(tmp_path)) is None


def test_other_unit_is_refused_with_the_right_reward(tmp_path: Path) -> None:
    name = save_reward_model(tmp_path, "dialogue")
    with pytest.raises(ConfigError, match="scores whole dialogues; use it as the reward conversation_reward_model"):
        LearnedRewardMetric(name)


def test_other_format_is_refused(tmp_path: Path) -> None:
    name = save_reward_model(tmp_path, format="other")
    with pytest.raises(ConfigError, match="format 'other', but this version writes 'speaker_lines'; train it again"):
        LearnedRewardMetric(name)


@pytest.mark.parametrize("args", [{"label_ix": 0}, {"output": "logit"}, {"include_prompt_for_eval": False}])
def test_arguments_of_classifiers_are_refused(tmp_path: Path, args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="have no meaning with the reward model"):
        LearnedRewardMetric(save_reward_model(tmp_path), **args)


def test_folder_without_or_with_a_damaged_card_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no reward_model.json\). Use the folder of a run with alg.id"):
        load_reward_model(str(tmp_path), "reply", 8, "reward")
    name = save_reward_model(tmp_path)
    (tmp_path / CARD_FILE).write_text("{")
    with pytest.raises(ModelError, match=r"reward_model.json is damaged"):
        load_reward_model(name, "reply", 8, "reward")


def test_score_of_an_ensemble_is_the_mean_minus_the_penalty(tmp_path: Path) -> None:
    name = save_reward_model(tmp_path, n_members=3, offsets=[0.1, 0.0, -0.1])
    texts = ["User: fine\nAssistant: good", "User: hello"]
    own = [
        SequenceClassifier.from_pretrained(str(tmp_path / f"member_{i}"), truncation_side="left").logits(texts)[:, 0]
        for i in range(3)
    ]
    by_member = torch.stack(own, dim=-1).double()
    model = load_reward_model(name, "reply", 8, "reward", std_penalty=2.0)
    assert model.scores(texts) == pytest.approx(by_member.mean(-1).tolist(), abs=1e-6)
    shifted = by_member - torch.tensor([0.1, 0.0, -0.1], dtype=torch.float64)
    expected = by_member.mean(-1) - 2.0 * shifted.std(-1, unbiased=False)
    assert model.scores(texts, 2.0) == pytest.approx(expected.tolist(), abs=1e-6)
    assert model.scores([], 2.0) == []
    differences = (by_member[:1] - by_member[1:]) / model.card.std
    assert model.differences(texts[:1], texts[1:])[0] == pytest.approx(differences[0].tolist(), abs=1e-5)
    standard = shifted / model.card.std
    assert model.standard_scores(texts) == pytest.approx(standard.numpy(), abs=1e-5)


def test_reward_has_the_penalty(tmp_path: Path) -> None:
    name = save_reward_model(tmp_path, n_members=2)
    arguments: Any = (["", ""], ["good", "how are you?"], [[], []], INFOS)
    mean, penalized = (LearnedReward(model_name=name, std_penalty=x).scores(*arguments) for x in (0.0, 1.0))
    assert all(low < high for low, high in zip(penalized, mean, strict=True))


def test_penalty_without_several_models_is_an_error(tmp_path: Path) -> None:
    name = save_reward_model(tmp_path)
    with pytest.raises(ConfigError, match=r"std_penalty is 1, but .* is a single model, .*alg.ensemble: 3"):
        LearnedRewardMetric(name, std_penalty=1.0)


def test_model_with_two_outputs_is_an_error(tmp_path: Path) -> None:
    name = save_reward_model(tmp_path)
    tokenizer = train_tokenizer(TEXTS, 300, 64)
    tiny_bert(tokenizer, num_labels=2).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="has 2 outputs, but a reward model has one"):
        LearnedRewardMetric(name)


@pytest.mark.parametrize("with_end", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pad_is_eos", [True, False])
def test_decoder_scores_the_last_real_token_whatever_the_padding(pad_is_eos: bool, side: str, with_end: bool) -> None:
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
