import dataclasses
import inspect
from pathlib import Path
from typing import get_args

import pytest
from feature_rows import rows_of_features
from pydantic import BaseModel
from transformers import TrainingArguments

from rl4dialog import catalog
from rl4dialog.core.arguments import parameters_of
from rl4dialog.core.config import kinds
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.registry import Registry
from rl4dialog.runs.trust import outside, refuse_code, remember


def metric(id, /, **args):
    return {"train_evaluation": {"metrics": [{"id": id, "args": args}]}}


def composite(part):
    return {"reward_fn": {"id": "composite", "args": {"rewards": [part]}}}


def partner(each):
    return {"env": {"args": {"partner": each}}}


JUDGE = {"id": "judge", "args": {"rubric": "?", "base_url": "http://judge/v1", "api_key_env": "SECRET"}}
PARTNER = {"id": "openai", "args": {"base_url": "http://stranger", "model": "m", "api_key_env": "SECRET"}}
DATA = {"id": "jsonl", "args": {"path": {"train": "/home/me/a.jsonl"}}}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"imports": ["./mine.py", "pkg.rewards"]}, "imports: ./mine.py, imports: pkg.rewards"),
        (metric("hf_evaluate", name="./own.py"), "hf_evaluate.name: ./own.py"),
        ({"reward_fn": {"id": "metric", "args": {"id": "hf_evaluate", "args": {"name": "x"}}}}, "hf_evaluate.name: x"),
        (composite({"id": "spider", "args": {"java": "./sh"}}), "spider.java: ./sh"),
        ({"env": {"id": "my_module:MyEnv-v0"}}, "env.id: my_module"),
        ({"datapool": {"id": "text_arena", "args": {"opponent": "os:system"}}}, "text_arena.opponent: os:system"),
        (metric("spice", java="./sh", id="bleu"), "spice.java: ./sh"),
        (partner(PARTNER), "env.args.partner.args.base_url: http://stranger, "),
        (partner(PARTNER), "env.args.partner.args.api_key_env: SECRET"),
        (partner({"id": "http", "args": {"url": "http://strange"}}), "env.args.partner.args.url: http://strange"),
        (composite(JUDGE), "reward_fn.args.rewards[0].args.base_url: http://judge/v1"),
        (metric("reward", **JUDGE), "train_evaluation.metrics[0].args.args.api_key_env: SECRET"),
        (metric("spice", cache_path="/home/.ssh"), "train_evaluation.metrics[0].args.cache_path: /home/.ssh"),
        (metric("spice", cache_path="builtin/../x"), "train_evaluation.metrics[0].args.cache_path: builtin/../x"),
        ({"datapool": {"id": "hf_dataset", "args": {"path": "s3://mine/data"}}}, "datapool.args.path: s3://mine/data"),
        ({"reward_fn": JUDGE, "datapool": DATA}, "datapool.args.path.train: /home/me/a.jsonl"),
        ({"reward_fn": JUDGE, "tokenizer": {"model_name": "me/private"}}, "tokenizer.model_name: me/private"),
    ],
)
def test_what_a_config_executes_or_sends_is_listed(config, named):
    with pytest.raises(ConfigError) as caught:
        refuse_code(config, Path("a/run"))
    assert named in str(caught.value) and "--trust" in str(caught.value) and "a/run" in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"imports": [], "train_evaluation": {"metrics": [{"id": "spider", "args": {}}]}},
        {"datapool": DATA, "reward_fn": {"id": "learned_reward", "args": {"model_name": "hub/model"}}},
        {"env": {"id": "dialogue_acts", "vec_env": "dummy"}, "datapool": {"id": "x", "args": {"opponent": "random"}}},
    ],
)
def test_config_that_only_reads_needs_no_trust(config):
    refuse_code(config, Path("a/run"), trains=True)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"logging": {"outputs": ["csv", "wandb"]}}, "logging.outputs[1]: wandb"),
        ({"alg": {"args": {"tensorboard_log": "/tmp/x"}}}, "alg.args.tensorboard_log: /tmp/x"),
        ({"alg": {"training_args": {"push_to_hub": True}}}, "alg.training_args.push_to_hub: True"),
        ({"callbacks": [{"id": "mine", "args": {"webhook_url": "http://x"}}]}, "callbacks[0].args.webhook_url"),
    ],
)
def test_what_only_training_uses_is_listed_for_training(config, named):
    refuse_code(config, Path("a/run"))
    with pytest.raises(ConfigError) as caught:
        refuse_code(config, Path("a/run"), trains=True)
    assert named in str(caught.value)


def test_run_that_was_trained_here_needs_no_trust_but_for_code():
    own = {"reward_fn": JUDGE, "datapool": DATA, "seed": 1}
    remember(own)
    refuse_code({**own, "seed": 2}, Path("a/run"))
    refuse_code({**own, **partner(PARTNER)}, Path("a/run"), written=own)  # an override of the user
    other_limit = {"reward_fn": {**JUDGE, "args": {**JUDGE["args"], "max_tokens": 10**6}}}
    beside = {"reward_fn": {"id": "composite", "parts": [JUDGE, {"id": "length_penalty", "args": {"max_length": 3}}]}}
    for change in ({"datapool": {}}, partner(PARTNER), {"imports": ["m"]}, other_limit, beside):
        with pytest.raises(ConfigError, match="--trust"):
            refuse_code({**own, **change}, Path("a/run"))


_HARMLESS = {
    "a text or pattern that is matched, shown or written to the model": (
        "append_to_texts",
        *("concept_end_token", "concept_separator_token", "greeting", "instructions", "keywords", "opening"),
        *("opening_request", "otherwise", "pattern", "prefix", "prompt", "prompt_prefix", "prompt_suffix", "replies"),
        *("prompt_template", "rubric", "rules", "system", "partner_replies", "agent", "partner", "start_words"),
        "ending",
    ),
    "a name of a column, key, split, metric or version": (
        *("columns", "delimiter", "expected_by", "goals", "key", "label_ix", "meta_data_columns", "meta_key", "name"),
        *("meta_keys", "metric", "outcomes", "parent_column", "persona_key", "ratings", "reply_column", "revision"),
        *("rudeness_column", "score_column", "splits", "log_infos", "config_name", "model", "game", "label_names"),
        *("metric_for_best_model", "length_column_name", "run_name", "project", "outputs", "encoding"),
        *("player", "expert", "suboptimal", "adversary", "first", "second", "split_by", "goal"),
    ),
    "a choice among a few, or a number": (
        *("agg", "apply_avg", "apply_best", "bins", "device", "ensure_compatibility", "op1"),
        *("granularity", "guesses", "language", "learning_rate", "max_n", "memory", "model_type", "nli_labels", "op2"),
        *("optimizer_class", "prompt_truncation_side", "shaping_fn", "smooth_method", "source_language", "tokenize"),
        *("target_language", "clip", "lr_scheduler_type", "optim", "torch_compile_backend"),
        *("torch_compile_mode", "logging_strategy", "log_level", "log_level_replica", "eval_strategy", "debug"),
        *("save_strategy", "ddp_backend", "fsdp", "dataloader_multiprocessing_context", "train_sampling_strategy"),
        *("include_for_metrics", "include_num_input_tokens_seen"),
    ),
    "a block, whose names are looked at": (
        *("args", "callback", "compute_args", "credit", "end_when", "generation_kwargs", "guidance", "pools"),
        *("info_fns", "players", "partners"),
        *("callbacks", "metrics", "optimizer_kwargs", "rewards", "settings", "weights", "training_args", "lora"),
        "accelerator_config",
        *("lr_scheduler_kwargs", "optim_args", "optim_target_modules", "activation_checkpointing_kwargs"),
        *("gradient_checkpointing_kwargs", "liger_kernel_config"),
    ),
    "an id of the catalog; env.id and imports are checked as code": ("id", "imports"),
    "an argument of a call, or one that this toolkit ignores": ("text", "resume_from_checkpoint"),
}
_KNOWN = {name for names in _HARMLESS.values() for name in names} | {*rows_of_features("HARMLESS_ARGUMENTS")}


def _fields(block, seen):
    """Names and types of all fields of a block of the schema, and of those in it."""
    if inspect.isclass(block) and issubclass(block, BaseModel) and block not in seen:
        seen.add(block)
        for name, field in block.model_fields.items():
            yield name, field.annotation
            yield from _fields(field.annotation, seen)
    for inner in get_args(block):
        yield from _fields(inner, seen)


def _all_arguments():
    """Ids of components (or names of other things) and names of what can hold a text."""
    for registry in (each for each in vars(catalog).values() if isinstance(each, Registry)):
        for id in registry.ids():
            for name, parameter in parameters_of(registry._factory(registry.resolve(id))).items():
                is_open = parameter.kind is parameter.VAR_KEYWORD
                if name not in registry.provided and not is_open and _can_be_text(parameter.annotation):
                    yield id, name
    for kind in kinds():
        yield from ((kind.__name__, name) for name, of in _fields(kind, set()) if _can_be_text(of))
    for field in dataclasses.fields(TrainingArguments):
        if _can_be_text(field.type):
            yield "TrainingArguments", field.name


def _can_be_text(annotation):
    """Whether a value of this type can hold a text; not a choice among a few, and not a block of the schema."""
    shown = str(annotation)
    return any(kind in shown.split("Literal")[0] for kind in ("str", "Path", "Any", "Mapping", "dict", "list"))


def test_every_argument_is_checked_or_known_to_be_harmless():
    unknown, harmless = [], set()
    for id, name in _all_arguments():
        config = {"block": {"id": id, "args": {name: "given"}}}
        try:
            refuse_code(config, Path("a/run"))
            is_checked = any(outside(config))
        except ConfigError:
            is_checked = True
        if not is_checked:
            harmless.add(name)
            unknown += [f"{id}.{name}"] if name not in _KNOWN else []
    assert unknown == [], "list them in rl4dialog/runs/trust.py, or here with the reason"
    assert {"path", "base_url", "api_key_env", "java"}.isdisjoint(harmless)
