"""A config whose environment is not that of text has keys of its own."""

from __future__ import annotations

from typing import Any

import pytest

from rl4dialog.core.config import parse_config, text_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.turn_level_config import TurnLevelConfig
from rl4dialog.training.building.components import check_components

CONFIG: dict[str, Any] = {
    "env": {"id": "CartPole-v1"},
    "alg": {"id": "dqn"},
    "train_evaluation": {"n_iters": 3},
}


def test_kind_follows_from_the_environment() -> None:
    config = parse_config(CONFIG, "x.yml")
    assert isinstance(config, TurnLevelConfig)
    assert (config.alg.policy.id, config.env.vec_env, config.n_iters) == ("mlp_policy", "dummy", 3)
    assert parse_config(config.model_dump(mode="json"), "config.json") == config
    check_components(config)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokenizer": {}}, "x.yml: the key 'tokenizer' has no meaning with env.id: CartPole-v1"),
        ({"alg": {"id": "dqn", "kl_div": {}}}, "alg: the key 'kl_div' has no meaning with env.id: CartPole-v1"),
        (
            {"train_evaluation": {"n_iters": 1, "metrics": []}},
            "train_evaluation: the key 'metrics' has no meaning with env.id: CartPole-v1",
        ),
        (
            {"env": {"id": "CartPole-v1", "on_worker_death": "restart"}},
            "env: the key 'on_worker_death' has no meaning with env.id: CartPole-v1",
        ),
        ({"env": {"id": "CartPole-v1", "n_workers": 2}}, "env: n_workers has a meaning only with vec_env: blocks"),
        ({"logging": {"log_infos": ["x"]}}, "logging.log_infos has no meaning with env.id: CartPole-v1"),
        ({"logging": {"conversations": True}}, "logging.conversations has no meaning with env.id: CartPole-v1"),
        ({"train_evaluation": {}}, "the key 'train_evaluation.n_iters' is missing"),
        ({"env": {}}, "env.id is missing too, which means text_generation"),
        ({"tokenizer": {"model_name": "x"}}, "language models are trained with env.id: text_generation"),
        ({"seeed": 1}, "unknown key 'seeed'; did you mean 'seed'?"),
    ],
)
def test_wrong_key_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_config({**CONFIG, **given}, "x.yml")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"alg": {"id": "grpo"}},
            "alg.id: grpo cannot be combined with env.id: CartPole-v1; use one of a2c, bc, crossq, ddpg, double_dqn",
        ),
        ({"alg": {"id": "dqnn"}}, "unknown turn-level algorithm 'dqnn'; did you mean 'dqn'?"),
        (
            {"alg": {"id": "dqn", "args": {"train_freq": [1, "episode"]}}},
            "alg.args.train_freq: input should be a valid",
        ),
        ({"alg": {"id": "dqn", "args": {"n_epochs": 1}}}, "turn-level algorithm 'dqn' has no argument 'n_epochs'"),
        ({"alg": {"id": "dqn", "args": {"seed": 1}}}, "alg.args.seed is decided by the rest of the config"),
        (
            {"alg": {"id": "dqn", "policy": {"id": "mlp_policy", "args": {"net_arch": ["64"]}}}},
            "alg.policy.args.net_arch",
        ),
        ({"env": {"id": "CartPol-v1"}}, "env.id: CartPol-v1 is neither in the catalog"),
        ({"env": {"id": "no_such_module:Env-v0"}}, "No module named 'no_such_module'"),
    ],
)
def test_wrong_component_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_components(parse_config({**CONFIG, **given}, "x.yml"))
    assert message in str(error.value)


def test_there_is_no_language_model() -> None:
    with pytest.raises(ConfigError, match=r"a run with env\.id: CartPole-v1 trains no language model"):
        text_config(parse_config(CONFIG, "x.yml"))
