"""Configs of runs that train a reward model."""

import pytest
from pages import yaml_of
from reward_models import make_config as reward_model_config

from rl4dialog.core.config import kind_of, parse_config, text_config
from rl4dialog.core.config_blocks import ComponentConfig
from rl4dialog.core.errors import ConfigError
from rl4dialog.features.feedback.config import RewardModelConfig
from rl4dialog.training.building.components import check_components, check_pool

RATED = {"id": "rated_dialogues", "share": 1, "args": {"dataset": "small_talk", "unit": "reply"}}


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
        ({"datapool": {"id": "small_talk"}}, "small_talk has no judgements for alg.id: reward_model; use"),
        ({"tokenizer": {"model_name": "x"}}, "must both be builtin/tiny-bert, or neither"),
        ({"tokenizer": {"model_name": "builtin/tiny-bert-cls"}}, "must both be builtin/tiny-bert, or neither"),
        ({"tokenizer": {"model_name": "builtin/tiny-gpt2"}}, "builtin/tiny-gpt2 cannot be a reward model"),
    ],
)
def test_keys_and_components_of_other_kinds_are_refused(blocks, message):
    with pytest.raises(ConfigError, match=message):
        check_components(parse_config(reward_model_config(**blocks), "c.yml"))


def test_a_policy_cannot_learn_from_ratings():
    mixed = ComponentConfig(id="mixture", args={"pools": [RATED]})
    with pytest.raises(ConfigError, match=r"pools\[0\].id: rated_dialogues has no prompts; it is for"):
        check_pool(mixed)


def test_kind_follows_from_the_algorithm():
    config = parse_config(reward_model_config(), "c.yml")
    assert kind_of(reward_model_config()) is type(config) is RewardModelConfig
    assert config.n_iters == 3
    check_components(config)
    with pytest.raises(ConfigError, match=r"a run with alg\.id: reward_model trains no language model"):
        text_config(parse_config(reward_model_config(), "c.yml"))


def test_reward_model_needs_judgements_in_every_part():
    def check(*pools):
        mixture = {"id": "mixture", "args": {"pools": [*pools]}}
        check_components(parse_config(reward_model_config(datapool=mixture), "c.yml"))

    check(RATED)
    with pytest.raises(ConfigError, match=r"pools\[1\].id: small_talk has no judgements"):
        check(RATED, {"id": "small_talk", "share": 1})


def test_config_by_example_is_valid():
    page = "docs/feedback.md"
    check_components(parse_config(yaml_of(page, "tokenizer:"), page))
