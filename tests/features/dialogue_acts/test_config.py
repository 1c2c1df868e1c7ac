"""Configs of turn-level runs."""

import pytest
from pages import yaml_of

from rl4dialog.core import config
from rl4dialog.core.config import parse_config, text_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.features.dialogue_acts.config import TurnLevelConfig
from rl4dialog.training.building.components import check_components

TURN_LEVEL = {"env": {"id": "CartPole-v1"}, "alg": {"id": "dqn"}, "train_evaluation": {"n_iters": 3}}


def test_environment_of_a_missing_feature_is_an_error(monkeypatch):
    others = [kind for kind in config.kinds() if kind is not TurnLevelConfig]
    monkeypatch.setattr(config, "kinds", lambda: others)
    with pytest.raises(ConfigError, match=r"no feature of this installation has runs with env\.id: CartPole-v1"):
        parse_config(TURN_LEVEL, "x.yml")


def test_kind_follows_from_the_environment():
    config = parse_config(TURN_LEVEL, "x.yml")
    assert isinstance(config, TurnLevelConfig)
    assert (config.alg.policy.id, config.env.vec_env, config.n_iters) == ("mlp_policy", "dummy", 3)
    assert parse_config(config.model_dump(mode="json"), "config.json") == config
    check_components(config)
    with pytest.raises(ConfigError, match=r"a run with env\.id: CartPole-v1 trains no language model"):
        text_config(config)


def test_config_by_example_is_valid():
    page = "docs/coming_from/convlab2.md"
    check_components(parse_config(yaml_of(page, "task:"), page))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokenizer": {}}, "x.yml: the key 'tokenizer' has no meaning with env.id: CartPole-v1"),
        ({"alg": {"id": "dqn", "kl_div": {}}}, "alg: the key 'kl_div' has no meaning with env.id: CartPole-v1"),
        ({"train_evaluation": {"n_iters": 1, "metrics": []}}, "train_evaluation: the key 'metrics' has no meaning"),
        ({"env": {"id": "CartPole-v1", "n_workers": 2}}, "env: n_workers has a meaning only with vec_env: blocks"),
        ({"logging": {"log_infos": ["x"]}}, "logging.log_infos has no meaning with env.id: CartPole-v1"),
        ({"logging": {"conversations": True}}, "logging.conversations has no meaning with env.id: CartPole-v1"),
        ({"train_evaluation": {}}, "the key 'train_evaluation.n_iters' is missing"),
        ({"env": {}}, "env.id is missing too, which means text_generation"),
        ({"tokenizer": {"model_name": "x"}}, "language models are trained with env.id: text_generation"),
        ({"seeed": 1}, "unknown key 'seeed'; did you mean 'seed'?"),
        ({"alg": {"id": "grpo"}}, "alg.id: grpo cannot be combined with env.id: CartPole-v1; use one of a2c, bc,"),
        ({"alg": {"id": "dqnn"}}, "unknown turn-level algorithm 'dqnn'; did you mean 'dqn'?"),
        ({"alg": {"id": "dqn", "args": {"train_freq": [1, "episode"]}}}, "alg.args.train_freq: input should be a"),
        ({"alg": {"id": "dqn", "args": {"n_epochs": 1}}}, "turn-level algorithm 'dqn' has no argument 'n_epochs'"),
        ({"alg": {"id": "dqn", "args": {"seed": 1}}}, "alg.args.seed is set by other parts of the config"),
        (
            {"alg": {"id": "dqn", "policy": {"id": "mlp_policy", "args": {"net_arch": ["64"]}}}},
            "alg.policy.args.net_arch",
        ),
        ({"env": {"id": "CartPol-v1"}}, "env.id: CartPol-v1 is neither in the catalog"),
        ({"env": {"id": "no_such_module:Env-v0"}}, "No module named 'no_such_module'"),
    ],
)
def test_wrong_key_or_component_is_named(given, message):
    with pytest.raises(ConfigError) as error:
        check_components(parse_config({**TURN_LEVEL, **given}, "x.yml"))
    assert message in str(error.value)
