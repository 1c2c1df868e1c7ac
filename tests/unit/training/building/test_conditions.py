"""Settings that cannot do what they are for, or do not go together: noted at load, refused, found by the doctor."""

import re

import pytest
from feature_rows import rows_of_features
from runs import changed, make_config, train, write_config

from rl4dialog import cli
from rl4dialog.core import process_memory
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.components import check_components
from rl4dialog.training.building.conditions import conditions_met, refuse_useless
from rl4dialog.training.building.conversations import build_partner, n_weight_copies

# Overrides of the small config.
TEXT = {}
TALK = {"env__args__max_turns": 2, "env__args__partner": {"id": "facts"}}


def built(folder, base, overrides):
    if base in (TEXT, TALK):
        return parse_config(make_config(folder, **{**base, **overrides}), "test")
    return parse_config(changed(base, overrides), "test")


def partner(id, **args):
    return {"env__args__partner": {"id": id, "args": args}}


def args(**given):
    return {f"alg__args__{name}": value for name, value in given.items()}


def policy(**given):
    return {f"alg__policy__args__{name}": value for name, value in given.items()}


def env(**given):
    return {f"env__args__{name}": value for name, value in given.items()}


KEEP_BEST = {"train_evaluation__keep_best": "reward", "train_evaluation__eval_every": 3}
HTTP = partner("http", url="http://localhost:1")
GUESSING = {"datapool": {"id": "guess_what", "args": {"max_turns": 4}}}
INNER = [{"id": "rouge", "weight": 0}, {"id": "meteor", "weight": {"constant": {"value": 0}}}]
NESTED = {"id": "composite", "args": {"rewards": [{"id": "composite", "args": {"rewards": INNER}}]}}
GREEDY = {"alg__args__importance_correction": "token", "alg__policy__args__generation_kwargs": {"do_sample": False}}
MASKABLE = {"alg__id": "nlpo", "alg__policy__id": "maskable_causal_lm_actor_critic_policy"}
SEQ2SEQ = {"alg__policy__id": "seq2seq_lm_actor_critic_policy"}
GRAPH = {"generation__backend": "graph"}
RLOO = {"alg__id": "rloo", "env__n_envs": 4}
RESET = {"alg__policy__args__reference": "reset", "alg__policy__args__reference_every": 2}
SECRET = {"alg__policy__args__critic_reads": "secret"}
KEEPING = {"alg__policy__args__reference": "ema", "alg__policy__args__reference_decay": 1.0}
# What loading notes, new runs refuse, the doctor warns of, or no command accepts.
MET = [
    (TEXT, "refuse", policy(generation_kwargs={"min_length": 11}), "min_length is 11, but replies have at most 10"),
    (TEXT, "warn", {"callbacks": [{"id": "early_stopping", "args": {"metric": "reward"}}]}, "can never stop the run"),
    (TEXT, "warn", KEEP_BEST, "keep_best can choose only between the first model and the last"),
    (TEXT, "note", {"train_evaluation__eval_every": 3}, "eval_every is 3, more than the 2 iterations"),
    (TEXT, "warn", args(credit="turn"), "credit: turn is for conversations, but env.args.max_turns is 1"),
    (TEXT, "warn", RESET, "reference_every is 2, and the run has only 2 iterations"),
    (TEXT, "note", MASKABLE, "target_update_iterations is 20, more than the 2 iterations"),
    (TEXT, "note", {"reward_fn__pay": "turn"}, "reward_fn.pay: turn has no effect"),
    (TEXT, "note", {"lora": {"lora_dropout": 0.1}}, "^lora.lora_dropout has no effect"),
    (TEXT, "note", {**RLOO, **policy(critic="shared")}, "^alg.policy.args.critic has no effect"),
    (TEXT, "note", {"alg__kl_div": {"coeff": 0.0, "target_kl": 0.1}}, "^alg.kl_div.target_kl has no effect"),
    (TEXT, "warn", {"reward_fn": NESTED}, r"reward_fn.args.rewards\[0\].args.rewards\[0\] \(rouge\) has the weight 0"),
    (TEXT, "refuse", KEEPING, "reference_decay is 1, so the reference never moves"),
    (TEXT, "error", {**args(mask_truncated=True), **env(terminate_on_eos=False)}, "leaves out all replies with"),
    (TEXT, "error", {**RLOO, **policy(critic_from="runs/a")}, "critic_from has no effect: alg.id: rloo"),
    (TEXT, "error", args(critic_warmup_iters=4), "critic_warmup_iters is 4, more than the 2 iterations"),
    (
        TEXT,
        "error",
        {"alg__policy__args__critic_lr_factor": 2, "alg__id": "a2c", "alg__args": {}},
        "critic_lr_factor is not supported",
    ),
    (TEXT, "error", {**RLOO, **SECRET}, "critic_reads has no effect: alg.id: rloo has no critic"),
    (TALK, "error", {**SECRET, **HTTP}, "critic_reads is secret, but the partner 'http' has no secret"),
    (TALK, "error", {**SECRET, **partner("replay")}, "the partner 'replay' has no secret"),
    (TALK, "error", {**SECRET, **partner("self_play", learns="both")}, "learns: both is not supported with .*secret"),
    (TEXT, "note", args(learning_rate={"start": 0.1, "warmup": 0.5}), "learning_rate is 0 in the last of the 2"),
    (TEXT, "note", env(max_secret_length=9), "max_secret_length has no effect without"),
    (TEXT, "error", GREEDY, "importance_correction needs alg.policy.args.generation_kwargs.do_sample: true"),
    (TEXT, "error", args(importance_correction="sequence"), "no effect: without filters such as"),
    (TEXT, "error", {**RESET, "alg__kl_div": {"coeff": 0.0}}, "reference: reset has no effect on training"),
    (TEXT, "error", GRAPH | MASKABLE, "graph is not possible here, because a second model chooses among the tokens"),
    (TEXT, "error", GRAPH | policy(generation_kwargs={"no_repeat_ngram_size": 2}), "because no_repeat_ngram_size"),
    (TEXT, "error", GRAPH | SEQ2SEQ, "because the cross-attention of an encoder-decoder is not captured; remove it"),
    (TEXT, "error", policy(reference="none"), "coeff is 0.1, but alg.policy.args.reference is none"),
    (TALK, "note", partner("rules", rules=[{"pattern": "a", "replies": "b"}], opening="hi"), "opening has no effect"),
    (TALK, "note", partner("self_play", snapshot_every=2), "makes no copies: snapshot_every is 2, and n_iters 2"),
    (TALK, "note", partner("self_play", snapshot_every=1, latest_share=1.0), "with latest_share: 1 only the newest"),
    (TALK, "warn", {**HTTP, "reward_fn__timeout_s": 20}, "timeout_s ends all attempts together after 20"),
    (TALK, "note", env(max_partner_length=10000), "max_partner_length is 10,000, but prompts have only"),
    (TEXT, "note", args(turn_gamma=0.5), "turn_gamma has no effect: env.args.max_turns is 1"),
    (TALK, "note", GUESSING, "datapool.args.max_turns is 4, but env"),
    *rows_of_features("CONDITIONS_MET"),
]


@pytest.mark.parametrize(("base", "level", "overrides", "message"), MET, ids=[message[:20] for *_, message in MET])
def test_what_a_setting_cannot_do_is_noted_at_load_and_refused_at_its_level(base, level, overrides, message, tmp_path):
    config = built(tmp_path, base, overrides)
    assert [level for met, level in conditions_met(config).items() if re.search(message, met)] == [level]
    if level == "error":
        with pytest.raises(ConfigError, match=message):
            check_components(config)
    elif level == "refuse":
        check_components(config)  # a finished run is still evaluated
        with pytest.raises(ConfigError, match=message) as refusal:
            refuse_useless(config)
        assert str(refusal.value) in config.warnings
    else:
        refuse_useless(config)


LONGER = {"train_evaluation__n_iters": 100, "env__args__max_turns": 2, "env__args__partner_replies": ["hi"]}
SUPERVISED = {"id": "supervised", "model_type": "causal", "model_name": "m", "training_args": {}}
WITHOUT = [
    *((base, {}) for base in (TEXT, TALK)),
    *((TEXT, {**overrides, **LONGER}) for _, _, overrides, _ in MET[1:8]),
    *rows_of_features("CONDITIONS_NOT_MET"),
    (TEXT, args(learning_rate={"start": 0.1, "end": 0.01})),
    (TEXT, {**args(learning_rate={"start": 0.1}), "train_evaluation__n_iters": 1, "train_evaluation__eval_every": 1}),
    (TEXT, {"lora": {"lora_dropout": 0.0}}),
    (TEXT, {"alg": SUPERVISED, "lora": {"lora_dropout": 0.1}, "reward_fn": None}),  # where dropout has an effect
    (TEXT, {**RLOO, "alg__policy__args__critic": "none"}),
    (TEXT, {"alg__kl_div": {"coeff": 0.1, "target_kl": 0.1}}),
    (TEXT, {"alg__args__critic_warmup_iters": 2}),  # trains only the critic
    *((base, {**SECRET, "env__args__max_secret_length": 9}) for base in (TEXT, TALK)),
    (TALK, {**SECRET, **partner("self_play")}),
    (TEXT, {"alg__args__critic_warmup_iters": 2, "train_evaluation__n_iters": 0}),
]


@pytest.mark.parametrize(("base", "overrides"), WITHOUT)
def test_settings_that_have_their_effect_meet_no_condition(base, overrides, tmp_path):
    assert conditions_met(built(tmp_path, base, overrides)) == {}


def test_notes_are_added_once(tmp_path):
    config = built(tmp_path, TEXT, {"lora": {"lora_dropout": 0.1}})
    for _ in range(2):
        check_components(config)
    assert len([note for note in config.warnings if note.startswith("lora.lora_dropout")]) == 1


def test_commands_refuse_a_useless_run_before_there_is_a_folder(tmp_path, capsys):
    useless = {"alg__policy__args__generation_kwargs": {"min_length": 11}}
    path = write_config(tmp_path, make_config(tmp_path, **useless))
    results = tmp_path / "runs"
    common = ["--config_path", str(path), "--base_path_to_store_results", str(results)]
    for command in (["train", *common, "--dry_run"], ["train", *common]):
        assert cli.main(command) == 2
        error = capsys.readouterr().err
        assert error.count("min_length is 11, but replies have at most 10") == 1
    assert not results.exists()


LENGTH = {"id": "length_penalty", "args": {"max_length": 3}}
COPIES = {"id": "self_play", "args": {"snapshot_every": 2}}
BOTH = {"learns": "both", "snapshot_every": 3}
ONLY_EPOCHS = {**SUPERVISED, "model_name": "builtin/tiny-gpt2", "training_args": {"num_train_epochs": 1}}


@pytest.mark.parametrize(
    ("base", "overrides", "message"),
    [
        (TEXT, args(correction_cap=3.0), "correction_cap has no effect without alg.args.importance_correction"),
        (TEXT, args(supervised_batch_size=4), "supervised_batch_size has no effect without alg.args.supervised"),
        (TEXT, policy(reference="ema"), "alg.policy.args.reference: ema needs reference_decay, such as"),
        (TEXT, policy(reference_decay=0.9), "reference_decay has no effect without reference: ema"),
        (TEXT, {**RLOO, **env(once=True)}, "env.args.once: alg.args.n_generations is 4, so each sample is talked"),
        (TEXT, {"warm_start": {"lr_scheduler_type": "warmup_stable_decay"}}, "warm_start.lr_scheduler_type: warmup_st"),
        (TEXT, {"warm_start": {"lr_scheduler_type": "greedy"}}, "warm_start: lr_scheduler_type greedy requires an"),
        (
            TEXT,
            {"alg": {**ONLY_EPOCHS, "training_args": {"lr_scheduler_type": "cosine_with_min_lr"}}},
            "alg.training_args.lr_scheduler_type: cosine_with_min_lr cannot be used",
        ),
        (TALK, partner("self_play", **BOTH), "learns: both trains the current policy on both sides"),
        (TALK, partner("self_play", pool_size=3), "pool_size has no effect without snapshot_every"),
        (TALK, partner("self_play", snapshot_every=-1), "env.args.partner.args.snapshot_every"),
        (TALK, {"train_evaluation__partner": COPIES}, "train_evaluation.partner.args.snapshot_every: evaluations"),
        (TALK, {**partner("self_play"), "alg": ONLY_EPOCHS}, "supervised, which has no rollouts; use language_model"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(base, overrides, message, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_components(built(tmp_path, base, {"reward_fn": LENGTH, **overrides}))


@pytest.mark.parametrize(
    ("base", "overrides", "message"),
    [
        (TEXT, args(learning_rate=0.0), "learning_rate: input should be greater than 0"),
        (TEXT, args(learning_rate={"start": 11.0}), "learning_rate.start: input should be less than or equal to 10"),
        (TEXT, args(n_epochs=20_000), "n_epochs: input should be less than or equal to 10000"),
        (TEXT, {"warm_start": {"n_epochs": 1e9}}, "warm_start.n_epochs: input should be less than or equal to 10000"),
        (TEXT, {"warm_start": {"learning_rate": 100.0}}, "warm_start.learning_rate: input should be less than or"),
        (TEXT, args(vf_coef=1e300), "vf_coef: input should be less than or equal to 1000000000"),
        (TALK, env(end_when={"partner": ["\\w|\\W"]}), "\\\\W' matches every text, so conversations end"),
        *rows_of_features("MEANINGLESS_NUMBERS"),
    ],
)
def test_meaningless_numbers_are_refused(base, overrides, message, tmp_path):
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_components(built(tmp_path, base, overrides))


def test_a_run_that_needs_more_samples_is_refused_before_it_begins(tmp_path, capsys):
    config = make_config(tmp_path, **env(once=True), train_evaluation__n_iters=999)
    assert train(tmp_path, config, "--dry_run") == 2
    assert re.search(r"once: the run needs at least [\d,]+ samples.*the train split has \d+", capsys.readouterr().err)


def test_a_plan_beyond_the_memory_of_the_machine_is_shown_and_refused(tmp_path, capsys, monkeypatch):
    limit = tmp_path / "max"
    monkeypatch.setattr(process_memory, "_CGROUPS", ((limit, tmp_path / "current"),))
    config = make_config(tmp_path, alg__args__device="cpu")
    for n_bytes, code in ((2**26, 2), (2**60, 0)):
        limit.write_text(str(n_bytes))
        assert train(tmp_path, config, "--dry_run") == code
        out, error = capsys.readouterr()
        assert "memory: peak per process" in out
        assert bool(re.search(r"needs about [\d,]+ MiB, and this machine has 64 MiB in main memory", error)) == (
            code == 2
        )


def config_of(folder, args=None, **overrides):
    partner = {"id": "self_play", "args": args or {}}
    settings = {"reward_fn": LENGTH, "env__args__max_turns": 2, "env__args__partner": partner, **overrides}
    return parse_config(make_config(folder, **settings), "test")


@pytest.mark.parametrize(
    ("base", "overrides", "message"),
    [
        (TEXT, policy(compile=True), "alg.policy.args.compile is not supported with FSDP"),
        (TALK, {"train_evaluation__value_rank_states": 10}, "value_rank_states is not supported with FSDP"),
        (TEXT, {"train_evaluation__generation_kwargs": {"num_beams": 2}}, "beam search is not supported with FSDP"),
    ],
)
def test_what_sharded_weights_do_not_support_is_refused(base, overrides, message, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_components(built(tmp_path, base, {"reward_fn": LENGTH, **overrides}))


@pytest.mark.parametrize("base", [TEXT, *rows_of_features("CONFIGS")])
def test_deepspeed_is_refused_and_fsdp_named(base, tmp_path, monkeypatch):
    config = built(tmp_path, base, {})
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    message = r"DeepSpeed, .* checkpoints, target_kl or critic warm-up; select FSDP.*docs/large_models\.md"
    with pytest.raises(ConfigError, match=message):
        check_components(config)


def test_partner_has_the_format_lengths_and_sampling_of_the_agent(tmp_path):
    sampling = {"alg__policy__args__generation_kwargs": {"do_sample": True, "max_new_tokens": 7}}
    config = config_of(tmp_path, **sampling, env__args__max_partner_length=9)
    texts = Assembly(config).texts
    side = build_partner(config.env.args.partner, config, texts).side
    assert side.max_length == 7 and side.dialogue_format.name == "eou" and side.dialogue_format.in_conversation
    # Built-in models have 24 + 7 positions; 9 tokens leave 22 of them for the prompt.
    own = config_of(tmp_path, {"generation_kwargs": {"do_sample": False}}, **sampling, env__args__max_partner_length=9)
    side = build_partner(own.env.args.partner, own, texts).side
    assert (side.max_prompt_length, side.max_length) == (22, 9)


def test_datapool_must_have_a_dialogue_format(tmp_path):
    config = config_of(tmp_path)
    texts = Assembly(config).texts
    for pool in texts.data.pools.values():
        pool.dialogue_format = None
    with pytest.raises(ConfigError, match="'daily_dialog' has none; use a datapool of dialogues"):
        build_partner(config.env.args.partner, config, texts)


def test_copies_are_counted(tmp_path):
    pool, other = {"snapshot_every": 2, "pool_size": 3}, {"train_evaluation__partner": {"id": "scripted"}}
    assert n_weight_copies(config_of(tmp_path)) == (0, True)
    assert n_weight_copies(config_of(tmp_path, **other)) == (0, False)
    assert n_weight_copies(config_of(tmp_path, pool, **other)) == (2, True)
    assert n_weight_copies(config_of(tmp_path, {"snapshot_every": 2})) == (3, True)
    assert n_weight_copies(config_of(tmp_path, env__args__partner={"id": "facts"})) == (0, False)
