from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from reward_models import make_config

import rl4dialog
from rl4dialog.cli import main
from rl4dialog.core import config, config_blocks
from rl4dialog.core.config import RewardModelConfig, TurnLevelConfig, kind_of, parse_config, text_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.reference_pages import schema_page
from rl4dialog.training.building.components import check_components

# The keys of RL4LMs' dialogue configs.
CONFIG: dict[str, Any] = {
    "tokenizer": {"model_name": "gpt2", "padding_side": "left", "pad_token_as_eos_token": True},
    "reward_fn": {"id": "intent_accuracy", "args": {"intent_coeff": 0.5}},
    "datapool": {"id": "daily_dialog", "args": {"context_size": 5}},
    "env": {
        "n_envs": 10,
        "args": {"max_prompt_length": 128, "max_episode_length": 30, "terminate_on_eos": True},
    },
    "alg": {
        "id": "ppo",
        "args": {"n_steps": 128, "batch_size": 64, "learning_rate": 1e-6, "n_epochs": 5},
        "kl_div": {"coeff": 0.2, "target_kl": 0.5},
        "policy": {
            "id": "causal_lm_actor_critic_policy",
            "args": {"model_name": "gpt2", "apply_model_parallel": True, "generation_kwargs": {"top_k": 20}},
        },
    },
    "train_evaluation": {
        "eval_batch_size": 32,
        "n_iters": 200,
        "save_every": 10,
        "metrics": [{"id": "meteor", "args": None}],
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(CONFIG)
    *parents, last = path.split(".")
    node = config
    for key in parents:
        node = node[key]
    node[last] = value
    return config


def test_rl4lms_config_is_accepted_and_dead_keys_are_told() -> None:
    config = parse_config(CONFIG, "x.yml")
    assert config.train_evaluation.metrics[0].args == {}
    assert any(w.startswith("alg.policy.args.apply_model_parallel has no effect") for w in config.warnings)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("env.n_env", 3, r"x.yml: unknown key 'env.n_env'; did you mean 'n_envs'\?"),
        ("tokenizr", {}, "did you mean 'tokenizer'"),
        ("train_evaluation.metrics", [{"idd": "meteor"}], r"unknown key 'train_evaluation.metrics\[0\].idd'"),
        ("env.n_envs", "three", "env.n_envs: input should be a valid integer, got 'three'"),
        ("env.n_envs", 0, "greater than or equal to 1"),
        ("env.n_envs", True, "valid integer"),
        ("env.n_workers", 0, "greater than or equal to 1"),
        ("env.n_workers", 1.5, "valid integer"),
        ("reward_fn.timeout_s", 0, "greater than 0"),
        ("reward_fn.timeout_s", float("nan"), "reward_fn.timeout_s"),
        ("reward_fn.timeout_s", float("inf"), "finite number"),
        ("env.vec_env", "threads", "'blocks', 'subproc' or 'dummy'"),
        ("alg.args.batch_size", 5000, r"n_steps \* n_envs = 128 \* 10 = 1280"),
        ("alg.kl_div.coeff", -1, "greater than or equal to 0"),
        ("alg.kl_div.type", "fixed", "target_kl has no meaning with type: fixed"),
        ("alg.kl_div", None, "'kl_div' is missing"),
        ("env", None, "x.yml: the key 'env' is missing, which alg.id: ppo needs"),
        ("alg.policy", None, "alg: the key 'policy' is missing, which alg.id: ppo needs"),
        ("alg.training_args", {}, "alg: the key 'training_args' has no meaning with alg.id: ppo"),
        ("alg.trainin_args", {}, r"unknown key 'alg.trainin_args' \(known here: id, args, kl_div, policy\)"),
        ("seed", -1, "seed"),
        ("env.args.max_turns", 2, "max_turns needs a partner"),
        ("env.args.end_when", {"agent": ["bye", ""]}, "pattern 1 is empty, which ends every conversation"),
        ("env.args.partner_replies", [], "env.args.partner_replies: .*at least 1 item"),
        ("env.n_envs", 100_000_000, "env.n_envs: .*less than or equal to 65536"),
    ],
)
def test_mistake_is_told_with_its_path(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(changed(path, value), "x.yml")


def test_workers_without_effect_are_a_warning() -> None:
    config = changed("env.n_workers", 4)
    assert not any("n_workers" in warning for warning in parse_config(config, "x.yml").warnings)
    for kind in ("dummy", "subproc"):
        config["env"]["vec_env"] = kind
        assert any(w.startswith("env.n_workers has no effect") for w in parse_config(config, "x.yml").warnings)


def test_subproc_says_what_it_is_now() -> None:
    for kind in ("blocks", "dummy", "subproc"):
        found = [w for w in parse_config(changed("env.vec_env", kind), "x.yml").warnings if "SubprocVecEnv" in w]
        assert len(found) == (kind == "subproc")
    # Such as an earlier version left in a run folder.
    config = changed("env.vec_env", "subproc")
    config["env"] |= {"n_workers": 2, "on_worker_death": "restart", "max_restarts": 3}
    assert sum("has no effect" in warning for warning in parse_config(config, "x.yml").warnings) >= 2


def test_all_mistakes_are_told_at_once() -> None:
    config = changed("env.n_envs", "three")
    config["seed"] = "x"
    with pytest.raises(ConfigError, match=r"env\.n_envs.*seed|seed.*env\.n_envs"):
        parse_config(config, "x.yml")


def test_supervised_needs_its_own_keys() -> None:
    alg = {"id": "supervised", "model_type": "causal", "model_name": "gpt2"}
    with pytest.raises(ConfigError, match=r"alg: the key 'training_args' is missing, which alg.id: supervised needs"):
        parse_config(changed("alg", alg), "x.yml")
    alg |= {"training_args": {}, "kl_div": {"coeff": 0.1}}
    with pytest.raises(ConfigError, match=r"alg: the key 'kl_div' has no meaning with alg.id: supervised"):
        parse_config(changed("alg", alg), "x.yml")


@pytest.mark.parametrize(
    ("alg", "of_other_kinds"),
    [
        (CONFIG["alg"], {"training_args": None, "model_type": None, "model_name": None, "loss_on": "reply"}),
        (
            {"id": "supervised", "model_type": "causal", "model_name": "gpt2", "training_args": {}},
            {"kl_div": None, "policy": None},
        ),
    ],
)
def test_resolved_config_of_an_earlier_version_is_the_same_config(alg: Any, of_other_kinds: Any) -> None:
    now = parse_config(changed("alg", alg), "x.yml").model_dump(mode="json")
    for other in (changed("alg", {**alg, **of_other_kinds}), now):
        assert parse_config(other, "x.yml").model_dump(mode="json") == now


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


TURN_LEVEL: dict[str, Any] = {
    "env": {"id": "CartPole-v1"},
    "alg": {"id": "dqn"},
    "train_evaluation": {"n_iters": 3},
}


def test_kind_follows_from_the_environment() -> None:
    config = parse_config(TURN_LEVEL, "x.yml")
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
        parse_config({**TURN_LEVEL, **given}, "x.yml")
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
        check_components(parse_config({**TURN_LEVEL, **given}, "x.yml"))
    assert message in str(error.value)


def test_there_is_no_language_model() -> None:
    with pytest.raises(ConfigError, match=r"a run with env\.id: CartPole-v1 trains no language model"):
        text_config(parse_config(TURN_LEVEL, "x.yml"))


MODELS = {
    value
    for module in (config, config_blocks)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, BaseModel)
}


def test_page_of_the_docs_is_what_list_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--schema"]) == 0
    page = Path(__file__).parents[3] / "docs" / "yaml.md"
    assert page.read_text(encoding="utf-8") == capsys.readouterr().out, "write it anew: rl4dialog list --schema"


@pytest.mark.parametrize("model", sorted(MODELS, key=lambda model: model.__name__), ids=lambda model: model.__name__)
def test_every_key_is_described(model: type[BaseModel]) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_rows_tell_type_default_and_bounds() -> None:
    page = schema_page()
    assert "| `n_envs` | integer, at least 1, at most 65,536 | `1` | " in page
    assert "| `type` | `fixed`, `adaptive`, `ziegler` | `null` | " in page
    assert re.search(
        r"## env\.args\n.*\| `max_prompt_length` \| integer, at least 1, at most 1,000,000 \|  \| ",
        page,
        re.DOTALL,
    )
    assert "| `metrics` | list of `{id, args}` | `[]` | " in page


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys, rl4dialog, rl4dialog.cli; rl4dialog.RewardFunctionRegistry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = rl4dialog.nothing
