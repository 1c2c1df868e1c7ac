import copy
import re
import subprocess
import sys

import pytest
from pydantic import BaseModel
from runs import make_config

from rl4dialog.core import config, config_blocks
from rl4dialog.core.config import GenerationBlock, load_config, parse_config, text_config
from rl4dialog.core.errors import ConfigError

# The keys of RL4LMs' dialogue configs.
CONFIG = {
    "tokenizer": {"model_name": "gpt2", "padding_side": "left", "pad_token_as_eos_token": True},
    "reward_fn": {"id": "intent_accuracy", "args": {"intent_coeff": 0.5}},
    "datapool": {"id": "daily_dialog", "args": {"context_size": 5}},
    "env": {"n_envs": 10, "args": {"max_prompt_length": 128, "max_episode_length": 30, "terminate_on_eos": True}},
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


def changed(path, value):
    config = copy.deepcopy(CONFIG)
    *parents, last = path.split(".")
    node = config
    for key in parents:
        node = node[key]
    node[last] = value
    return config


def test_rl4lms_config_is_accepted_and_dead_keys_are_told():
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
        ("reward_fn.timeout_s", 0, "greater than 0"),
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
        ("env.args.end_when", {"agent": ["bye", ".+"]}, "'.\\+' matches every text, so conversations end after"),
        ("env.args.end_when", {"partner": [""]}, "'' matches every text"),
        ("env.args.partner_replies", [], "env.args.partner_replies: .*at least 1 item"),
        ("precision", "fp16", "x.yml: precision: fp16 overflows above 65,504, so it needs a loss scale"),
        ("env.n_envs", 100_000_000, "env.n_envs: .*less than or equal to 65536"),
    ],
)
def test_mistake_is_told_with_its_path(path, value, message):
    with pytest.raises(ConfigError, match=message):
        parse_config(changed(path, value), "x.yml")


@pytest.mark.parametrize(
    ("library", "config"),
    [
        (
            "OpenRL",
            {"lr": 1e-7, "ppo_epoch": 5, "env": {"args": {"data_path": "a"}}, "reward_class": {"id": "NLPReward"}},
        ),
        ("OpenRL", {"seed": 0, "use_share_model": True}),
        ("OpenRL", {"seed": 0, "run_dir": "./runs", "wandb_entity": "me"}),
        ("ILQL", {"defaults": [{"model": "per_token_iql"}], "train_dataset": {}, "train": {"bsize": 8}}),
    ],
)
def test_config_of_another_library_is_recognized(library, config):
    page = rf"docs/coming_from/{library.lower()}\.md"
    with pytest.raises(ConfigError, match=rf"^x\.yml is a config of {library}.*{page}[^;]*$"):
        parse_config(config, "x.yml")
    with pytest.raises(ConfigError, match="unknown key"):  # a config of this toolkit with one of these keys
        parse_config({**CONFIG, **config}, "x.yml")


@pytest.mark.parametrize("text", ['{"alg": {"id": "ppo"}, "tokenizr": {}}', "{"])
def test_own_config_of_the_name_of_a_runs_is_no_run_of_an_earlier_version(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path / "config.json")
    assert "written by" not in str(error.value)


def test_workers_without_effect_are_warnings():
    config = changed("env.n_workers", 4)
    for kind, is_warned in (("blocks", False), ("dummy", True), ("subproc", True)):
        config["env"]["vec_env"] = kind
        warnings = parse_config(config, "x.yml").warnings
        assert any(w.startswith("env.n_workers has no effect") for w in warnings) == is_warned


def test_all_mistakes_are_told_at_once():
    config = changed("env.n_envs", "three")
    config["seed"] = "x"
    with pytest.raises(ConfigError, match=r"env\.n_envs.*seed|seed.*env\.n_envs"):
        parse_config(config, "x.yml")


@pytest.mark.parametrize(
    "alg", [CONFIG["alg"], {"id": "supervised", "model_type": "causal", "model_name": "gpt2", "training_args": {}}]
)
def test_resolved_config_is_the_same_config(alg):
    now = parse_config(changed("alg", alg), "x.yml").model_dump(mode="json")
    assert parse_config(now, "x.yml").model_dump(mode="json") == now


MODELS = {
    value
    for module in (config, config_blocks)
    for value in vars(module).values()
    if isinstance(value, type) and issubclass(value, BaseModel)
}


@pytest.mark.parametrize("model", sorted(MODELS, key=lambda model: model.__name__), ids=lambda model: model.__name__)
def test_every_key_is_described(model):
    assert [name for name, field in model.model_fields.items() if not field.description] == []


WITHOUT_TORCH = """
import importlib, pkgutil, sys
import rl4dialog.cli, rl4dialog.tasks
from rl4dialog import PartnerRegistry, RewardFunctionRegistry
from rl4dialog.scores import diversity, meteor, overlap, rules

for each in pkgutil.walk_packages(rl4dialog.tasks.__path__, "rl4dialog.tasks."):
    importlib.import_module(each.name)
for id in ("facts", "http", "openai", "replay", "rules", "scripted"):
    PartnerRegistry.resolve(id)
sys.exit("torch" in sys.modules)
"""


def test_package_tasks_partners_and_lexical_metrics_import_no_torch():
    assert subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=False).returncode == 0


EVALUATION, POLICY, ALG = (
    "train_evaluation.generation_kwargs",
    "alg.policy.args.generation_kwargs",
    "alg.generation_kwargs",
)


def make(tmp_path, **overrides):
    """An RL config whose replies end after 10 tokens, unless overrides say otherwise."""
    return text_config(parse_config(make_config(tmp_path, **overrides), "test"))


def make_supervised(tmp_path, with_env=False, model_type="causal", **overrides):
    config = make_config(tmp_path)
    alg = {"id": "supervised", "model_type": model_type, "model_name": "builtin/tiny-gpt2", "training_args": {}}
    config["alg"] = {**alg, "generation_kwargs": overrides.pop("alg_kwargs", None)}
    config["train_evaluation"].update(overrides)
    if not with_env:
        del config["env"]
    return text_config(parse_config(config, "test"))


def test_blocks_are_those_of_evaluations_and_the_algorithm_in_this_order(tmp_path):
    config = make(tmp_path, alg__policy__args__generation_kwargs={"top_k": 3})
    assert config.generation_blocks == [GenerationBlock(EVALUATION, {}), GenerationBlock(POLICY, {"top_k": 3})]
    assert [block.where for block in make_supervised(tmp_path).generation_blocks] == [EVALUATION, ALG]

    def block(of_evaluation, of_policy):
        policy = {"alg__policy__args__generation_kwargs": of_policy}
        return make(tmp_path, train_evaluation__generation_kwargs=of_evaluation, **policy).evaluation_block

    assert block(None, {"top_k": 3}) == block({}, {"top_k": 3}) == GenerationBlock(POLICY, {"top_k": 3})
    assert block({"top_p": 0.5}, {"top_k": 3}) == GenerationBlock(EVALUATION, {"top_p": 0.5})
    assert block(None, None) == GenerationBlock(POLICY, {})


@pytest.mark.parametrize(("given", "expected"), [(None, 10), (3, 3), (80, 10), ("abc", 10), ([3], 10), (True, 10)])
def test_reply_ends_with_the_episode_or_before(tmp_path, given, expected):
    rollouts, of_evaluations = {"max_new_tokens": given}, {"train_evaluation__generation_kwargs": {"max_new_tokens": 2}}
    config = make(tmp_path, alg__policy__args__generation_kwargs=rollouts, **of_evaluations)
    assert config.reply_limit == expected
    assert make_supervised(tmp_path, with_env=True, alg_kwargs=rollouts).reply_limit == expected


@pytest.mark.parametrize(
    ("model_type", "kwargs", "given", "limit"),
    [
        ("causal", {}, None, 32),
        ("causal", {"max_new_tokens": 3}, 3, 3),
        ("causal", {"max_length": 7}, None, 32),
        ("seq2seq", {"max_length": 7}, 6, 6),
        ("seq2seq", {"max_length": 1}, 1, 1),
        ("seq2seq", {"max_length": 7, "max_new_tokens": 3}, 3, 3),
    ],
)
def test_reply_limit_of_a_run(tmp_path, model_type, kwargs, given, limit):
    config = make_supervised(tmp_path, model_type=model_type, alg_kwargs=kwargs)
    assert (config.evaluation_reply_limit, config.reply_limit) == (given, limit)
    config = make_supervised(tmp_path, alg_kwargs={"max_new_tokens": 9}, generation_kwargs={"max_new_tokens": 3})
    assert config.reply_limit == 3


SAMPLING = {"do_sample": True, "top_k": 0, "max_new_tokens": 8}
SUPERVISED = {"id": "supervised", "model_type": "causal", "model_name": "builtin/tiny-gpt2", "training_args": {}}


def notes(tmp_path, **overrides):
    overrides.setdefault("alg__policy__args__generation_kwargs", SAMPLING)
    return parse_config(make_config(tmp_path, **overrides), "test").warnings


def supervised_notes(tmp_path, **alg):
    config = make_config(tmp_path)
    config["alg"] = {**SUPERVISED, "generation_kwargs": SAMPLING, **alg}
    del config["env"], config["train_evaluation"]["n_iters"]
    return parse_config(config, "test").warnings


def test_what_leaves_nothing_open_has_no_notes_and_sampling_without_top_k_one(tmp_path):
    assert notes(tmp_path) == supervised_notes(tmp_path, loss_on="all") == []
    names = ("alg__policy__args__generation_kwargs", "train_evaluation__generation_kwargs")
    assert len(notes(tmp_path, **{name: {"do_sample": True, "max_new_tokens": 8} for name in names})) == 1


OF_EVALUATIONS = [
    ({"do_sample": True}, "train_evaluation.generation_kwargs samples without top_k"),
    ({"top_k": 3}, "has no do_sample: evaluations decode greedily"),
    ({"do_sample": False, "max_new_tokens": 9}, "max_new_tokens is 9, but replies end after 8 tokens"),
    ({"do_sample": False, "length_penalty": 0.5}, "length_penalty has no effect unless num_beams is above 1"),
    ({"num_beams": 3, "num_return_sequences": 2}, "num_return_sequences: only the best reply"),
    ({"num_beams": 3, "use_cache": True}, "use_cache has no effect"),
]
OF_ROLLOUTS = [
    ({"do_sample": True, "max_new_tokens": 8}, "samples without top_k, from the whole vocabulary; .* default of 50"),
    ({**SAMPLING, "max_new_tokens": 80}, "is 80, but env.args.max_episode_length ends replies after 10 tokens"),
    ({**SAMPLING, "max_new_tokens": 10, "min_new_tokens": 11}, "is 11, but replies end after 10 tokens, so none ends"),
    ({"do_sample": True, "top_k": 0}, "has no max_new_tokens: replies end after .* = 10 tokens; RL4LMs .* 20"),
]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        *(({"train_evaluation__generation_kwargs": kwargs}, expected) for kwargs, expected in OF_EVALUATIONS),
        *(({"alg__policy__args__generation_kwargs": kwargs}, expected) for kwargs, expected in OF_ROLLOUTS),
        ({"env__args__context_start_token": 0}, "context_start_token has no effect: a decoder-only model continues"),
        ({"tokenizer__truncation_side": "right"}, "truncation_side: right has no effect: .* .left. is used"),
        ({"reward_fn": {"id": "nlp_reward", "args": {"ref_model": "x"}}}, "ref_model has no effect: .*target_kl: 0.05"),
        ({"tokenizer__max_length": 7}, "tokenizer.max_length has no effect: env.args.max_prompt_length"),
        ({"tokenizer__padding_side": "right"}, "padding_side has no effect: prompts are padded on the left"),
    ],
    ids=str,
)
def test_each_is_said_in_one_line(tmp_path, overrides, expected):
    (note,) = notes(tmp_path, **overrides)
    assert re.search(expected, note)


def test_defaults_of_rl4lms_are_said_to_configs_that_were_written_for_it(tmp_path):
    no_effect, defaults = notes(tmp_path, alg__policy__args__apply_model_parallel=True, env__args__priority_scale=1.0)
    assert no_effect.startswith("alg.policy.args.apply_model_parallel has no effect")
    assert defaults == (
        "RL4LMs has other defaults for keys that this config does not set: the optimizer is AdamW with weight_decay "
        "1e-6 (here Adam); terminate_on_eos is false (here true)"
    )


def test_rollouts_without_do_sample_and_encoder_decoders_are_told_of(tmp_path):
    first, second = notes(tmp_path, alg__policy__args__generation_kwargs={"max_new_tokens": 8})
    assert "evaluations decode greedily" in first and "rollouts sample; RL4LMs then decodes greedily" in second
    start, length = notes(
        tmp_path,
        alg__policy__id="seq2seq_lm_actor_critic_policy",
        alg__policy__args__generation_kwargs={**SAMPLING, "min_length": 2},
        env__args__context_start_token=0,
    )
    assert start.endswith("an encoder-decoder's replies start with the decoder_start_token_id of the model's config")
    assert "counts the start token of an encoder-decoder" in length


def test_beams_under_nlpos_mask_are_refused_by_name(tmp_path):
    nlpo = {"alg__id": "nlpo", "alg__policy__id": "maskable_causal_lm_actor_critic_policy"}
    (note,) = notes(tmp_path, **nlpo, train_evaluation__generation_kwargs={"num_beams": 4})
    assert "num_beams is ignored, because NLPO's mask" in note
    assert note.endswith("evaluations decode without beam search, greedily")


def test_what_rl4lms_does_otherwise_in_supervised_training_is_said(tmp_path):
    (note,) = supervised_notes(tmp_path)
    assert "only replies are trained on; RL4LMs also trains on prompts" in note
    (note,) = supervised_notes(tmp_path, loss_on="all", generation_kwargs={"do_sample": False})
    assert "evaluations end replies after 32 tokens" in note
    saved, logged = supervised_notes(tmp_path, loss_on="all", training_args={"save_total_limit": 1, "logging_steps": 5})
    assert "no effect without save_strategy" in saved and "RL4LMs also evaluates the val split" in logged
    (own,) = supervised_notes(tmp_path, loss_on="all", training_args={"save_strategy": "epoch", "save_total_limit": 1})
    assert "transformers' own checkpoints, besides those of train_evaluation.save_every" in own
    config = make_config(tmp_path, alg={**SUPERVISED, "loss_on": "all"})
    assert any("n_iters does not set the length" in note for note in parse_config(config, "test").warnings)
