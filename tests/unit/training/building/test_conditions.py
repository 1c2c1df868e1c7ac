"""Settings that cannot do what they are for: noted at load, refused by the plan and the run, found by the doctor."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from runs import make_config, write_config

from rl4dialog import cli
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.training.building.components import check_components
from rl4dialog.training.building.conditions import conditions_met, refuse_useless

CART_POLE: dict[str, Any] = {
    "env": {"id": "CartPole-v1", "n_envs": 4},
    "alg": {"id": "dqn", "args": {"learning_starts": 16, "train_freq": 8, "target_update_interval": 8}},
    "train_evaluation": {"n_iters": 2, "eval_every": 1, "n_eval_episodes": 1},
}
GOALS: dict[str, Any] = {
    "env": {"id": "turn_goals", "n_envs": 4, "args": {"goals": ["pet", "work", "small_talk"], "max_turns": 2}},
    "datapool": {"id": "get_acquainted"},
    "speaker": {"id": "scripted"},
    "partner": {"id": "facts"},
    "reward_fn": {"id": "persona_ranking"},
    "alg": {"id": "dqn", "args": {"learning_starts": 0, "train_freq": 8, "target_update_interval": 8}},
    "train_evaluation": {"n_iters": 2},
}


def changed(config: dict[str, Any], overrides: dict[str, Any]) -> Any:
    config = copy.deepcopy(config)
    for dotted, value in overrides.items():
        *path, last = dotted.split("__")
        block = config
        for key in path:
            block = block.setdefault(key, {})
        block[last] = value
    return parse_config(config, "test")


def words(what: str) -> dict[str, Any]:
    return {"name": what, "questions": [f"what about {what} ?"], "words": [what]}


USELESS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (CART_POLE, {"alg__args__learning_starts": 64}, "learning_starts is 64, but the run has only 64 timesteps"),
    (CART_POLE, {"alg__args__gradient_steps": 0}, "gradient_steps is 0, so nothing is ever trained"),
    (CART_POLE, {"alg__args__buffer_size": 31}, "buffer_size is 31, less than alg.args.batch_size = 32"),
    (CART_POLE, {"alg__args__target_update_interval": 68}, "target_update_interval is 68, but .* 64 timesteps"),
    (
        CART_POLE,
        {"env__id": "Pendulum-v1", "alg": {"id": "sac", "args": {"tau": 0.0}}, "train_evaluation__n_iters": 999},
        "tau is 0",
    ),
    (CART_POLE, {"alg__args__tau": 0.0}, "tau is 0, so the target network never moves"),
    (GOALS, {"env__args__goals": ["pet"]}, "goals has only the goal 'pet'"),
    (
        GOALS,
        {"env__args__goals": [words("cars"), words("Cars ")]},
        "'cars' and 'Cars ' have the same",
    ),
    (
        GOALS,
        {"env__args__goals": ["pet", {**words("animals"), "words": ["pet"]}]},
        "'pet' and 'animals' have the same",
    ),
    (GOALS, {"env__args__goals": ["pet", {**words("a"), "words": ["the", "of"]}]}, "'a' has words, but none is a"),
    (
        GOALS,
        {"env__args__goals": ["small_talk", {"name": "you", "questions": ["and you ?"]}]},
        "'small_talk' and 'you' have no words",
    ),
]


@pytest.mark.parametrize(("base", "overrides", "message"), USELESS, ids=[message[:20] for *_, message in USELESS])
def test_useless_run_is_noted_at_load_and_refused(
    base: dict[str, Any], overrides: dict[str, Any], message: str
) -> None:
    healthy, useless = parse_config(base, "test"), changed(base, overrides)
    assert conditions_met(healthy) == {}
    refuse_useless(healthy)
    check_components(useless)  # a finished run is still evaluated
    with pytest.raises(ConfigError, match=message) as refusal:
        refuse_useless(useless)
    assert str(refusal.value) in useless.warnings


TEXT: list[tuple[dict[str, Any], str]] = [
    ({"callbacks": [{"id": "early_stopping", "args": {"metric": "reward"}}]}, "can never stop the run"),
    ({"train_evaluation__keep_best": "reward", "train_evaluation__eval_every": 3}, "keep_best has no effect"),
    ({"train_evaluation__eval_every": 3}, "eval_every is 3, more than the 2 iterations"),
    ({"alg__args__credit": "turn"}, "credit: turn is for conversations, but env.args.max_turns is 1"),
    (
        {"alg__policy__args__reference": "reset", "alg__policy__args__reference_every": 2},
        "reference_every is 2, and the run has only 2 iterations",
    ),
    (
        {"alg__id": "nlpo", "alg__policy__id": "maskable_causal_lm_actor_critic_policy"},
        "target_update_iterations is 20, more than the 2 iterations",
    ),
    ({"reward_fn__pay": "turn"}, "reward_fn.pay: turn has no effect"),
]
TALK = {"id": "rules", "args": {"rules": [{"pattern": "a", "replies": "b"}], "opening": "hi"}}
COPIES = {"id": "self_play", "args": {"snapshot_every": 2}}
OF_CONVERSATIONS: list[tuple[dict[str, Any], str]] = [
    ({"env__args__partner": TALK}, "opening has no effect"),
    ({"env__args__partner": COPIES}, "makes no copies: snapshot_every is 2, and n_iters 2"),
    (
        {"env__args__partner": {"id": "self_play", "args": {"snapshot_every": 1, "latest_share": 1.0}}},
        "with latest_share: 1 only the newest copy",
    ),
    (
        {"env__args__partner": {"id": "http", "args": {"url": "http://localhost:1"}}, "reward_fn__timeout_s": 20},
        "timeout_s is 30, but reward_fn.timeout_s ends all attempts together after 20 seconds",
    ),
    ({"env__args__max_partner_length": 10000}, "max_partner_length is 10,000, but prompts have only"),
    ({"alg__args__turn_gamma": 0.5}, "turn_gamma has no effect without credit: turn"),
    ({"datapool": {"id": "guess_what", "args": {"max_turns": 4}}}, "datapool.args.max_turns is 4, but env.args.max_"),
]
REPLAY: dict[str, Any] = {
    "env": {"id": "dialogue_acts", "args": {"action": "composite", "n_composites": 9}},
    "task": {"id": "town_guide"},
    "reward_fn": {"id": "task_reward"},
    "warm_start": {"id": "replay", "args": {"n_turns": 20}},
    "alg": {"id": "dqn", "args": {"learning_starts": 0, "buffer_size": 50, "target_update_interval": 8}},
    "train_evaluation": {"n_iters": 9},
}


@pytest.mark.parametrize(("overrides", "message"), TEXT, ids=[message[:20] for _, message in TEXT])
def test_setting_without_effect_is_noted_but_the_run_is_not_refused(
    overrides: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = parse_config(make_config(tmp_path, **overrides), "test")
    refuse_useless(config)
    assert [message in met for met in conditions_met(config)].count(True) == 1
    longer = {**overrides, "train_evaluation__n_iters": 100, "env__args__max_turns": 2}
    longer["env__args__partner_replies"] = ["hi"]
    assert conditions_met(parse_config(make_config(tmp_path, **longer), "test")) == {}


@pytest.mark.parametrize(
    ("overrides", "message"), OF_CONVERSATIONS, ids=[message[:9] for _, message in OF_CONVERSATIONS]
)
def test_setting_of_conversations_without_effect_is_noted(
    overrides: dict[str, Any], message: str, tmp_path: Path
) -> None:
    talk = {"env__args__max_turns": 2, "env__args__partner": {"id": "facts"}}
    assert conditions_met(parse_config(make_config(tmp_path, **talk), "test")) == {}
    (met,) = conditions_met(parse_config(make_config(tmp_path, **{**talk, **overrides}), "test"))
    assert message in met


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"warm_start__args__n_turns": 51}, "n_turns is 51, but alg.args.buffer_size is 50"),
        ({"env__args__action": "multi_binary"}, "n_composites has no effect"),
        (
            {"alg__args__exploration_final_eps": 1.0, "alg__args__exploration_initial_eps": 0.1},
            "explores more and more",
        ),
    ],
)
def test_setting_of_dialogue_acts_without_effect_is_noted(overrides: dict[str, Any], message: str) -> None:
    assert conditions_met(parse_config(REPLAY, "test")) == {}
    (met,) = conditions_met(changed(REPLAY, overrides))
    assert message in met


def test_dropout_of_adapters_has_an_effect_in_supervised_runs_only(tmp_path: Path) -> None:
    dropout = {"lora": {"lora_dropout": 0.1}}
    (message,) = conditions_met(parse_config(make_config(tmp_path, **dropout), "test"))
    assert message.startswith("lora.lora_dropout has no effect")
    assert not conditions_met(parse_config(make_config(tmp_path, lora={"lora_dropout": 0.0}), "test"))
    supervised = {"id": "supervised", "model_type": "causal", "model_name": "m", "training_args": {}}
    config = make_config(tmp_path, alg=supervised, **dropout)
    del config["reward_fn"]
    assert not conditions_met(parse_config(config, "test"))


def test_default_that_comes_too_late_is_only_a_warning() -> None:
    config = changed(CART_POLE, {"alg__args": {"learning_starts": 16, "train_freq": 8}})
    refuse_useless(config)
    ((message, level),) = conditions_met(config).items()
    assert level == "warn" and "target_update_interval is 10,000" in message


def test_run_that_only_evaluates_needs_no_training() -> None:
    refuse_useless(changed(CART_POLE, {"train_evaluation__n_iters": 0, "alg__args__learning_starts": 100}))


def test_reference_that_keeps_all_of_itself_is_refused(tmp_path: Path) -> None:
    moving = {"alg__policy__args__reference": "ema", "alg__policy__args__reference_decay": 1.0}
    with pytest.raises(ConfigError, match="reference_decay is 1, so the reference never moves"):
        refuse_useless(parse_config(make_config(tmp_path, **moving), "test"))


def test_built_in_goals_differ() -> None:
    for name in ("get_acquainted", "convogym"):
        assert conditions_met(changed(GOALS, {"env__args__goals": name})) == {}


def test_commands_refuse_a_useless_run_before_there_is_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = changed(CART_POLE, {"alg__args__learning_starts": 1000}).model_dump(mode="json", exclude_none=True)
    path = write_config(tmp_path, yaml.safe_dump(config))
    results = tmp_path / "runs"
    common = ["--config_path", str(path), "--base_path_to_store_results", str(results)]
    for command in (["train", *common, "--dry_run"], ["train", *common]):
        assert cli.main(command) == 2
        error = capsys.readouterr().err
        assert error.count("learning_starts is 1,000, but the run has only 64 timesteps") == 1
    assert not results.exists()
