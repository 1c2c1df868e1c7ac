"""What --dry_run says of memory is what a run then needs; and runs that save memory."""

import re
from dataclasses import replace

import pytest
from apart import Command
from runs import DENSE_REWARD, SHORT, lines, make_config, run_folder, supervised, train_arguments, trained_run
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rl4dialog.core.config import OnPolicyConfig, parse_config
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.memory import predict_memory

FLAGS = (["--dry_run"], [])
WIDE = {
    **SHORT,
    "train_evaluation__score_predictions": False,
    "tokenizer__vocab_size": 1000,
    "env__n_envs": 32,
    "alg__args": {"n_steps": 40, "batch_size": 1280, "n_epochs": 1, "learning_rate": 1e-4},
    "alg__policy__args__model_name": "builtin/small-gpt2",
    "alg__policy__args__generation_kwargs": {"do_sample": True, "min_length": 10},
}
# Replies and answers of ten tokens each; the six turns of a conversation are one row.
CONVERSATIONS = {
    "env__args": {
        "max_prompt_length": 160,
        "max_episode_length": 10,
        "max_turns": 6,
        "max_partner_length": 10,
        "partner": {"id": "scripted", "args": {"replies": ["i see , and what do you say of it ?"] * 5}},
    },
    "reward_fn": {"id": "length_penalty", "args": {"max_length": 5}},
}
# Rows of the supervised loss, which is never split: four times those of a micro-batch.
SUPERVISED = {**WIDE["alg__args"], "micro_batch_size": 32, "supervised_coef": 0.1, "supervised_batch_size": 128}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.long),
        pytest.param(CONVERSATIONS, marks=pytest.mark.long, id="conversations"),
        pytest.param({"alg__policy__args__critic": "shared", "lora": {"r": 8}}, marks=pytest.mark.long),
        pytest.param({"alg__policy__args__gradient_checkpointing": True}, marks=pytest.mark.long),
        pytest.param({"precision": "bf16"}, marks=pytest.mark.long),
        pytest.param({"alg__args": SUPERVISED}, marks=pytest.mark.long, id="supervised loss"),
    ],
)
def test_the_predicted_peak_is_near_the_measured_one(tmp_path, changes):
    config = make_config(tmp_path, **{**WIDE, **changes})
    # In processes of their own, which hold nothing else in memory.
    plan, run = (Command(train_arguments(tmp_path, config, *flags), tmp_path / "".join(flags)) for flags in FLAGS)
    assert plan.wait() == run.wait(500) == 0, run.errors
    found = re.search(r"peak per process\D+([\d,]+) MiB", plan.output)
    assert found is not None, plan.output
    measured = [line["memory/peak_mib"] for line in lines(run_folder(tmp_path) / "training_info.jsonl")]
    assert float(found[1].replace(",", "")) == pytest.approx(max(measured), rel=0.25)


def predicted(tmp_path, args, **changes):
    config = parse_config(make_config(tmp_path, **changes), "test")
    assert isinstance(config, OnPolicyConfig)
    return predict_memory(config, Assembly(config).texts, {**config.alg.args, **args})


def test_a_supervised_loss_of_many_references_is_predicted(tmp_path):
    plain = predicted(tmp_path, {})
    supervised = {"supervised_coef": 0.1}
    few, many = (predicted(tmp_path, {**supervised, "supervised_batch_size": n}) for n in (1, 512))
    assert few.activations == plain.activations, "the larger of both passes counts"
    assert many.activations > 4 * plain.activations
    prompts_too = predicted(tmp_path, {**supervised, "supervised_batch_size": 512}, warm_start={"loss_on": "all"})
    assert prompts_too.activations > many.activations


def test_a_reference_that_follows_adapters_is_a_copy_of_them(tmp_path):
    plain, ema = (
        predicted(tmp_path, {"critic": "shared", "reference": kind}, lora={"r": 8}) for kind in ("initial", "ema")
    )
    assert ema.frozen - plain.frozen == plain.weights > 0


def test_weights_before_an_update_are_a_copy_unless_the_step_is_searched(tmp_path):
    for id, n_copies in (("ppo", 1), ("trpo", 0)):
        limits = {"critic": "shared", "target_kl": 0.1}
        free, limited = (predicted(tmp_path, {**limits, "step_back": back}, alg__id=id) for back in (None, 1.5))
        assert limited.frozen - free.frozen == n_copies * free.weights


def test_a_separate_critic_has_a_trunk(tmp_path):
    shared, separate = (predicted(tmp_path, {"critic": kind}) for kind in ("shared", "separate"))
    assert separate.weights == 2 * shared.weights, "the head of the language model is its embedding"
    assert shared.activations < separate.activations


def test_nothing_is_loaded_to_predict(tmp_path):
    """A model of 7 billion weights is predicted in the memory of a test."""
    from transformers import LlamaConfig

    LlamaConfig(vocab_size=32000).save_pretrained(tmp_path / "llama")
    config = parse_config(make_config(tmp_path), "test")
    assert isinstance(config, OnPolicyConfig)
    texts = Assembly(config).texts
    config.alg.policy.args.model_name = str(tmp_path / "llama")
    plan = predict_memory(config, texts, {**config.alg.args, "critic": "shared"})
    assert 4 * 6.7e9 < plan.weights < 4 * 6.8e9
    assert plan.optimizer == 2 * plan.gradients == 2 * plan.weights
    assert plan.total > plan.frozen + 4 * plan.weights


@pytest.mark.parametrize("is_supervised", [False, True])
def test_a_run_with_lora_in_bf16_leaves_merged_weights_and_adapters(tmp_path, is_supervised):
    config = make_config(tmp_path, **SHORT, lora={"r": 2, "lora_alpha": 16}, precision="bf16", reward_fn=DENSE_REWARD)
    if is_supervised:
        config["alg"] = supervised(num_train_epochs=1, per_device_train_batch_size=4, learning_rate=1e-2)
    else:
        config["alg"]["args"]["learning_rate"] = 1e-2
    model = trained_run(tmp_path, config) / "model"
    adapters = load_file(model / "adapter" / "adapter_model.safetensors")
    assert adapters and all(".lora_" in name for name in adapters)
    assert any(name.endswith("lora_B.weight") and weight.abs().max() > 0 for name, weight in adapters.items())
    merged = AutoModelForCausalLM.from_pretrained(model)
    assert not any("lora" in name for name in merged.state_dict())


@pytest.mark.parametrize("split_by_length", [False, True])
def test_huge_counts_are_predicted_without_lists_of_that_size(tmp_path, split_by_length):
    args = {"batch_size": None, "n_epochs": None, "split_by_length": split_by_length, "n_steps": 10**6}
    few, many = predicted(tmp_path, args), predicted(tmp_path, {**args, "n_steps": 10**12})
    assert few.activations is not None and many.activations is not None
    assert many.activations / few.activations == pytest.approx(1e6, rel=0.1)


def test_conversations_without_a_limit_of_turns_are_predicted(tmp_path):
    def plan(max_turns):
        conversations = {**CONVERSATIONS, "env__args": {**CONVERSATIONS["env__args"], "max_turns": max_turns}}
        return predicted(tmp_path, {}, **conversations)

    assert replace(plan(10**6), program=0) == replace(plan(1000), program=0)
