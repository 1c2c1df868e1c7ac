"""Settings that cannot do what they are for, or do not go together: noted at load, refused, found by the doctor."""

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
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.components import check_components
from rl4dialog.training.building.conditions import conditions_met, refuse_useless
from rl4dialog.training.building.conversations import build_partner, n_weight_copies

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
        ({"env__args__max_turns": 1}, "env.args.max_turns is 1: every dialogue ends"),
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


def test_parts_and_arguments_without_effect_are_told(tmp_path: Path) -> None:
    inner = [{"id": "rouge", "weight": 0}, {"id": "meteor", "weight": {"constant": {"value": 0}}}]
    parts = {"reward_fn": {"id": "composite", "args": {"rewards": [{"id": "composite", "args": {"rewards": inner}}]}}}
    ((message, level),) = conditions_met(parse_config(make_config(tmp_path, **parts), "test")).items()
    assert level == "warn" and "reward_fn.args.rewards[0].args.rewards[0] (rouge) has the weight 0" in message
    for player, n_met in (("random", 1), ("mixture", 0)):
        games = {"datapool": {"id": "wordle", "args": {"player": player, "p_consistent": 0.5}}}
        assert len(conditions_met(parse_config(make_config(tmp_path, **games), "test"))) == n_met


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


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no reply ends": (
        {"alg__args__mask_truncated": True, "env__args__terminate_on_eos": False},
        r"mask_truncated leaves out all replies with env\.args\.terminate_on_eos: false",
    ),
    "critic of an algorithm without": (
        {"alg__id": "rloo", "env__n_envs": 4, "alg__policy__args__critic_from": "runs/critic"},
        r"critic_from has no effect: alg\.id: rloo has no critic",
    ),
    "policy that is never trained": (
        {"alg__args__critic_warmup_iters": 4, "train_evaluation__n_iters": 3},
        r"critic_warmup_iters is 4, more than the 3 iterations .*so the policy is never trained",
    ),
    "correction of greedy replies": (
        {"alg__args__importance_correction": "token", "alg__policy__args__generation_kwargs": {"do_sample": False}},
        r"importance_correction needs alg\.policy\.args\.generation_kwargs\.do_sample: true",
    ),
    "correction of the policy's own samples": (
        {"alg__args__importance_correction": "sequence"},
        r"importance_correction has no effect: without filters such as alg\.policy\.args\.generation_kwargs\.top_k",
    ),
    "cap without correction": (
        {"alg__args__correction_cap": 3.0},
        r"alg\.args\.correction_cap has no effect without alg\.args\.importance_correction",
    ),
    "references without weight": (
        {"alg__args__supervised_batch_size": 4},
        r"supervised_batch_size has no effect without alg\.args\.supervised_coef",
    ),
    "average without decay": (
        {"alg__policy__args__reference": "ema"},
        r"alg\.policy\.args\.reference: ema needs reference_decay, such as 0\.99",
    ),
    "decay without average": (
        {"alg__policy__args__reference_decay": 0.9},
        r"reference_decay has no effect without reference: ema",
    ),
    "moving reference without penalty": (
        {
            "alg__policy__args__reference": "reset",
            "alg__policy__args__reference_every": 2,
            "alg__kl_div": {"coeff": 0.0},
        },
        r"reference: reset has no effect on training with alg\.kl_div\.coeff: 0",
    ),
    "penalty without reference": (
        {"alg__policy__args__reference": "none"},
        r"coeff is 0\.1, but alg\.policy\.args\.reference is none",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_contradict_each_other_are_refused(name: str, tmp_path: Path) -> None:
    overrides, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words):
        check_components(parse_config(make_config(tmp_path, **overrides), "test"))


@pytest.mark.parametrize(
    "overrides",
    [
        {"alg__args__critic_warmup_iters": 3, "train_evaluation__n_iters": 3},  # trains only the critic
        {"alg__args__critic_warmup_iters": 3, "train_evaluation__n_iters": 0},  # only evaluates
    ],
)
def test_arguments_that_only_look_alike_are_accepted(overrides: dict[str, Any], tmp_path: Path) -> None:
    check_components(parse_config(make_config(tmp_path, **overrides), "test"))


RLOO: dict[str, Any] = {"alg__id": "rloo", "env__n_envs": 4}


@pytest.mark.parametrize(
    ("overrides", "notes"),
    [
        ({**RLOO, "alg__policy__args__critic": "shared"}, ["alg.policy.args.critic"]),
        ({**RLOO, "alg__policy__args__critic": "none"}, []),
        ({"alg__kl_div": {"coeff": 0.0, "target_kl": 0.1}}, ["alg.kl_div.target_kl"]),
        ({"alg__kl_div": {"coeff": 0.1, "target_kl": 0.1}}, []),
    ],
)
def test_key_that_another_setting_disables_is_noted_once(
    overrides: dict[str, Any], notes: list[str], tmp_path: Path
) -> None:
    config = parse_config(make_config(tmp_path, **overrides), "test")
    for _ in range(2):
        check_components(config)
    found = [note for note in config.warnings if "critic has no effect" in note or "target_kl has no effect" in note]
    assert [note.split()[0] for note in found] == notes


MODEL = {"model_type": "causal", "model_name": "builtin/tiny-gpt2"}
LENGTH = {"id": "length_penalty", "args": {"max_length": 3}}


def config_of(folder: Path, args: dict[str, Any] | None = None, **overrides: Any) -> Any:
    partner = {"id": "self_play", "args": args or {}}
    settings = {"reward_fn": LENGTH, "env__args__max_turns": 2, "env__args__partner": partner, **overrides}
    return parse_config(make_config(folder, **settings), "test")


@pytest.mark.parametrize(
    ("args", "overrides", "message"),
    [
        ({"learns": "both", "snapshot_every": 3}, {}, "learns: both trains the current policy on both sides"),
        ({"pool_size": 3}, {}, "pool_size has no effect without snapshot_every"),
        ({"snapshot_every": -1}, {}, r"env\.args\.partner\.args\.snapshot_every"),
        (
            {},
            {"train_evaluation__partner": {"id": "self_play", "args": {"snapshot_every": 2}}},
            r"train_evaluation\.partner\.args\.snapshot_every: evaluations have no copies",
        ),
        (
            {},
            {"alg": {"id": "supervised", **MODEL, "training_args": {"num_train_epochs": 1}}},
            "not supported with alg.id: supervised, which has no rollouts; use language_model",
        ),
    ],
)
def test_config_that_cannot_be_played_is_refused(
    tmp_path: Path, args: dict[str, Any], overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_components(config_of(tmp_path, args, **overrides))
    check_components(config_of(tmp_path))


def test_self_play_is_refused_with_fsdp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match=r"env\.args\.partner is not supported with FSDP"):
        check_components(config_of(tmp_path))


def test_partner_has_the_format_lengths_and_sampling_of_the_agent(tmp_path: Path) -> None:
    sampling = {"alg__policy__args__generation_kwargs": {"do_sample": True, "max_new_tokens": 7}}
    config = config_of(tmp_path, **sampling, env__args__max_partner_length=9)
    texts = Assembly(config).texts
    side: Any = build_partner(config.env.args.partner, config, texts).side  # type: ignore[union-attr]
    assert side.max_length == 7 and side.dialogue_format.name == "eou" and side.dialogue_format.in_conversation
    # Built-in models have 24 + 7 positions; 9 tokens leave 22 of them for the prompt.
    own = config_of(tmp_path, {"generation_kwargs": {"do_sample": False}}, **sampling, env__args__max_partner_length=9)
    side = build_partner(own.env.args.partner, own, texts).side  # type: ignore[union-attr]
    assert (side.max_prompt_length, side.max_length) == (22, 9)


def test_datapool_must_have_a_dialogue_format(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    texts = Assembly(config).texts
    for pool in texts.data.pools.values():
        pool.dialogue_format = None
    with pytest.raises(ConfigError, match="'daily_dialog' has none; use a datapool of dialogues"):
        build_partner(config.env.args.partner, config, texts)


def test_copies_are_counted(tmp_path: Path) -> None:
    pool, other = {"snapshot_every": 2, "pool_size": 3}, {"train_evaluation__partner": {"id": "scripted"}}
    assert n_weight_copies(config_of(tmp_path)) == (0, True)
    assert n_weight_copies(config_of(tmp_path, **other)) == (0, False)
    assert n_weight_copies(config_of(tmp_path, pool, **other)) == (2, True)
    assert n_weight_copies(config_of(tmp_path, {"snapshot_every": 2})) == (3, True)
    assert n_weight_copies(config_of(tmp_path, env__args__partner={"id": "facts"})) == (0, False)
