"""The cache of warm starts on whole dialogues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from runs import make_config
from tiny import make_gpt2, make_tokenizer

from rl4dialog.core.config import parse_config
from rl4dialog.data.pool import TextGenPool
from rl4dialog.training.building.examples import build_warm_start_examples
from rl4dialog.training.building.language_model import build_language_model, warm_start_key
from rl4dialog.training.building.texts import Texts, build_texts
from rl4dialog.training.doctor.policy_checks import warm_start
from rl4dialog.training.doctor.subject import Subject

CHANGES: dict[str, Any] = {
    "max_partner_length": 1,
    "context_turns": 2,
    "end_when": {"agent": ["^i "]},
}


def built(tmp_path: Path, **args: Any) -> tuple[Any, Texts]:
    config = parse_config(
        make_config(
            tmp_path,
            datapool={"id": "small_talk", "args": {"samples": "dialogues", "max_size": 20}},
            warm_start={"n_epochs": 1},
            env__args={"max_prompt_length": 400, "max_episode_length": 60, "max_turns": 2, **args},
            env__args__partner={"id": "replay"},
        ),
        "test",
    )
    return config, build_texts(config)


def learned(tmp_path: Path, **args: Any) -> tuple[Any, Any]:
    """The key in the cache, and the examples."""
    config, texts = built(tmp_path, **args)
    model = make_gpt2(make_tokenizer(), n_positions=600)
    return warm_start_key(config, model, texts), build_warm_start_examples(config, texts, model.config).train


@pytest.mark.parametrize("changed", CHANGES)
def test_rules_of_conversations_change_what_a_warm_start_learns(tmp_path: Path, changed: str) -> None:
    key, examples = learned(tmp_path)
    other_key, other_examples = learned(tmp_path, **{changed: CHANGES[changed]})
    assert key == learned(tmp_path)[0] != other_key
    assert examples != other_examples


def test_last_utterance_changes_what_a_warm_start_learns(tmp_path: Path) -> None:
    (config, texts), model = built(tmp_path), make_gpt2(make_tokenizer())
    key = warm_start_key(config, model, texts)
    pool: TextGenPool = texts.data.pools["train"]
    sample, _ = pool[0]
    assert sample.meta_data is not None
    sample.meta_data["continuation"][-1] += " oh"
    assert warm_start_key(config, model, texts) != key


def test_warm_start_that_memorises_is_reported_when_it_is_trained_loaded_and_examined(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warm = {"n_epochs": 40, "learning_rate": 0.01, "max_samples": 4, "batch_size": 1}
    config = parse_config(make_config(tmp_path, warm_start=warm, datapool__args__context_size=1), "test")
    for _ in range(2):
        caplog.clear()
        build_language_model(config, build_texts(config))
        assert "the warm start memorises its data: the loss of val replies was lowest" in caplog.text
    subject = Subject(config, tmp_path)
    found = warm_start(subject)
    assert found.level == "warn" and len(subject.warm_start_losses) == 41


def test_single_replies_are_learned_without_rules(tmp_path: Path) -> None:
    config = parse_config(make_config(tmp_path, warm_start={"n_epochs": 1}), "test")
    key = warm_start_key(config, make_gpt2(make_tokenizer()), build_texts(config))
    assert not {"frame", "rules"} & key.keys()


@pytest.mark.parametrize("changed", ["config", "generation_config", "tokenizer"])
def test_what_weights_and_vocabulary_do_not_say_is_in_the_key_of_a_warm_start(tmp_path: Path, changed: str) -> None:
    (config, texts), model = built(tmp_path), make_gpt2(make_tokenizer(), n_positions=600)
    key = warm_start_key(config, model, texts)
    if changed == "config":  # the same weights in other heads
        model.config.n_head *= 2
    elif changed == "generation_config":
        model.generation_config.eos_token_id = [0, 1]
    else:  # the same tokens, but another one ends a reply
        texts.tokenizer.eos_token = texts.tokenizer.pad_token
    assert json.dumps(warm_start_key(config, model, texts)) != json.dumps(key)
    model.config.name_or_path, model.config.transformers_version = "elsewhere", "9"
    model.generation_config.transformers_version = "9"
    moved = warm_start_key(config, model, texts)
    model.config.name_or_path = "here"
    assert moved == warm_start_key(config, model, texts)
