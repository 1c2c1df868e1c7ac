from __future__ import annotations

import copy
from typing import Any

import pytest

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError

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
