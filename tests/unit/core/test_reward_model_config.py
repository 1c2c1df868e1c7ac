"""The config of a reward model run."""

from __future__ import annotations

from typing import Any

import pytest
from reward_models import make_config

from rl4dialog.core.config import kind_of, parse_config, text_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.reward_model_config import RewardModelConfig
from rl4dialog.training.building.components import check_components


def test_alg_id_selects_the_kind_and_epochs_are_iterations() -> None:
    config = parse_config(make_config(), "c.yml")
    assert kind_of(make_config()) is type(config) is RewardModelConfig
    assert config.n_iters == 3
    check_components(config)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"env": {"n_envs": 2}}, "env.* has no meaning with alg.id: reward_model"),
        ({"reward_fn": {"id": "rouge"}}, "the key 'reward_fn' has no meaning with alg.id: reward_model"),
        ({"train_evaluation": {"n_iters": 3}}, "train_evaluation.n_iters has no meaning.* set alg.training_args"),
        ({"tokenizer": {"model_name": "x", "padding_side": "left"}}, "'padding_side' has no meaning with"),
        ({"logging": {"log_infos": ["a"]}}, "logging.log_infos has no meaning"),
        ({"logging": {"conversations": True}}, "logging.conversations has no meaning"),
        (
            {"alg": {"id": "reward_model", "model_name": "x", "training_args": {}, "args": {"a": 1}}},
            "alg.args has no meaning",
        ),
        ({"alg": {"id": "reward_model", "model_name": "x"}}, "the key 'training_args' is missing"),
    ],
)
def test_keys_of_other_kinds_are_refused(blocks: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(make_config(**blocks), "c.yml")


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (
            {"datapool": {"id": "small_talk"}},
            "small_talk has no judgements for alg.id: reward_model; use rated_dialogues",
        ),
        ({"tokenizer": {"model_name": "x"}}, "must both be builtin/tiny-bert, or neither"),
        ({"tokenizer": {"model_name": "builtin/tiny-bert-cls"}}, "must both be builtin/tiny-bert, or neither"),
        ({"tokenizer": {"model_name": "builtin/tiny-gpt2"}}, "builtin/tiny-gpt2 cannot be a reward model"),
    ],
)
def test_components_that_do_not_fit_are_refused(blocks: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_components(parse_config(make_config(**blocks), "c.yml"))


def test_run_trains_no_language_model() -> None:
    with pytest.raises(ConfigError, match="trains no language model"):
        text_config(parse_config(make_config(), "c.yml"))
