"""Another algorithm by one override: what is left out, chosen, kept and refused."""

import pytest
from feature_rows import rows_of_features
from runs import make_config, write_config

from rl4dialog.core.config import load_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.training.building.components import check_components

GAE = "adds up rewards without values or discounts by token"
# Algorithm and arguments of a config, overrides, and notes that begin in one of these ways.
SWITCHES = [
    (
        "ppo",
        {"vf_coef": 0.5, "gae_lambda": 0.9, "clip_range": 0.1},
        {"critic": "shared", "critic_lr_factor": 2.0, "critic_from": "run"},
        "grpo",
        [
            "alg.args.vf_coef is left out: grpo has no critic",
            f"alg.args.gae_lambda is left out: grpo {GAE}",
            "alg.policy.args.critic is left out: grpo has no critic",
            "alg.policy.args.critic_lr_factor is left out: grpo has no critic",
            "alg.policy.args.critic_from is left out: grpo has no critic",
            "alg.args.n_generations is 2: the default of 4 does not divide env.n_envs = 2",
            "alg.id: grpo has other defaults than ppo for what is not set: normalize_advantage False (was True), "
            "credit conversation (was token), kl_in",
        ],
    ),
    (
        "grpo",
        {"n_generations": 2, "kl_in": "reward"},
        {"critic": "none"},
        "a2c",
        [
            "alg.args.n_epochs is left out: a2c has no minibatches of the policy",
            "alg.args.n_generations is left out: a2c has no groups of replies",
            "alg.policy.args.critic is left out: a2c needs a critic",
            "alg.id: a2c has other defaults than grpo for what is not set: gamma 0.99, gae_lambda 1.0,",
        ],
    ),
    (
        "ppo",
        {"target_kl": 0.1, "ratio": "sequence"},
        {"critic_lr_factor": 2.0},
        "trpo",
        [
            "alg.args.ratio is left out: trpo has no clipped ratio",
            "alg.policy.args.critic_lr_factor is left out: trpo does not read it, only ppo and nlpo do",
            "alg.args.target_kl is kept, but with trpo every update stays within it",
            "alg.args.learning_rate is kept, but with trpo it is the critic's alone",
        ],
    ),
    (
        "ppo",
        {"gamma": 1.0, "critic_epochs": 1},
        {"critic_lr_factor": 2.0},
        "reinforce",
        [
            "alg.args.gamma is left out: reinforce adds up rewards without values",
            "alg.args.critic_epochs is left out: reinforce has no updates of the critic alone",
            "alg.policy.args.critic_lr_factor is left out: reinforce has no critic",
        ],
    ),
    ("ppo", {}, {}, "nlpo", ["alg.policy.id is now maskable_causal_lm_actor_critic_policy: nlpo needs a mask"]),
    (
        "rloo",
        {"n_generations": 2},
        {},
        "grpo",
        ["alg.id: grpo has other defaults than rloo for what is not set: kl_in"],
    ),
    (
        "reinforce",
        {"baseline": "batch", "credit": "conversation"},
        {},
        "ppo",
        [
            "alg.args.baseline is left out: ppo has no such argument",
            "alg.args.credit is left out: ppo does not take the value",
        ],
    ),
]


def config_file(tmp_path, id, args, of_policy=(), **more):
    args = {f"alg__args__{name}": value for name, value in args.items()}
    of_policy = {f"alg__policy__args__{name}": value for name, value in dict(of_policy).items()}
    return write_config(tmp_path, make_config(tmp_path, alg__id=id, **args, **of_policy, **more))


def checked(path, *overrides):
    config = load_config(path, overrides)
    check_components(config)
    return config


@pytest.mark.parametrize(("before", "args", "of_policy", "id", "wanted"), SWITCHES, ids=lambda v: str(v)[:12])
def test_what_has_no_meaning_is_left_out_and_each_change_is_noted(tmp_path, before, args, of_policy, id, wanted):
    path = config_file(tmp_path, before, args, of_policy)
    before_notes = load_config(path).warnings
    config = checked(path, f"alg.id={id}")
    new = [note for note in config.warnings if note.startswith("alg.") and note not in before_notes]
    for start in wanted:
        assert any(note.startswith(start) for note in new), (start, new)
    left_out = {note.split(" is left out")[0] for note in new if "is left out" in note}
    resolved = config.model_dump(mode="json")["alg"]
    assert not left_out & {f"alg.args.{name}" for name in resolved["args"]}
    assert {"alg.args.n_steps", *(f"alg.args.{name}" for name in args)} - left_out <= {
        f"alg.args.{name}" for name in resolved["args"]
    }
    # What the run folder keeps is what is used, and needs no switch.
    again = tmp_path / "again"
    assert checked(write_config(again, config.model_dump(mode="json"))).alg == config.alg


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["alg.id=grpo", "alg.args.vf_coef=0.1"], "alg.args.vf_coef has no meaning: grpo has no critic"),
        (["alg.id=grpo", "alg.args={n_steps: 16, vf_coef: 0.1}"], "vf_coef has no meaning: grpo has no critic"),
        (["alg.id=a2c", "alg.args.n_epochs=2"], "alg.args.n_epochs: algorithm 'a2c' has no argument 'n_epochs'"),
        (["alg.id=nlpo", "alg.policy.id=causal_lm_actor_critic_policy"], "nlpo does not support policy"),
        (["alg.id=grpo", "env.n_envs=1"], "n_generations is 4, which does not divide env.n_envs = 1"),
        (["alg.id=supervised"], "is for ppo; alg.id: supervised .* start from .*small_talk/gpt2_supervised.yml"),
        *rows_of_features("SWITCHED"),
    ],
)
def test_what_was_chosen_too_or_needs_another_config_is_an_error(tmp_path, overrides, problem):
    path = config_file(tmp_path, "ppo", {"vf_coef": 0.5})
    with pytest.raises(ConfigError, match=problem):
        checked(path, *overrides)


def test_value_that_no_algorithm_takes_remains_an_error(tmp_path):
    path = config_file(tmp_path, "ppo", {"n_epochs": "many"})
    with pytest.raises(ConfigError, match=r"alg\.args\.n_epochs: input should be"):
        checked(path, "alg.id=grpo", "env.n_envs=4")


def test_notes_about_beams_follow_the_mask(tmp_path):
    path = config_file(tmp_path, "ppo", {}, train_evaluation__generation_kwargs={"num_beams": 2})
    about_beams = "num_beams is ignored, because NLPO's mask"
    assert not any(about_beams in note for note in checked(path).warnings)
    assert any(about_beams in note for note in checked(path, "alg.id=nlpo").warnings)
