"""Saved models compute the log-probabilities of the policies that were trained, in every form that is saved."""

from pathlib import Path

import peft
import pytest
import torch
from covering import covering
from tiny import MODELS, make_env, make_gpt2, make_policy, make_tokenizer

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.core.pretrained import load_model
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.lora import ADAPTER_FOLDER, check_restores
from rl4dialog.policies.saving import (
    MODEL_FOLDER,
    load_policy_weights,
    optimizer_tensors,
    restore_optimizer,
    save_policy,
    tensors_hash,
    weights_hash,
)

ATTENTION = {"gpt2": "c_attn", "llama": "q_proj", "t5": "q", "bart": "q_proj"}
EMBEDDING = {"gpt2": "wte", "llama": "embed_tokens", "t5": "embed_tokens", "bart": "embed_tokens"}
TARGETS = {
    "attention": {"target_modules": ["attention"]},
    "all linear layers": {"target_modules": "all-linear"},
    "head": {"target_modules": ["attention", "lm_head"]},
    "embedding": {"target_modules": ["attention", "embedding"]},
    "head and embedding": {"target_modules": ["embedding", "lm_head"]},
    "head with DoRA": {"target_modules": ["lm_head"], "use_dora": True},
    "whole head": {"target_modules": ["attention"], "modules_to_save": ["lm_head"]},
    "whole embedding": {"target_modules": ["attention"], "modules_to_save": ["embedding"]},
    "some tokens": {"target_modules": ["attention"], "trainable_token_indices": [3, 5]},
}
TOKENIZER = make_tokenizer()


def make_model(name, tied):
    model = MODELS[name](TOKENIZER)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    if not tied:
        torch.manual_seed(1)
        model.config.tie_word_embeddings = model.config.is_encoder_decoder  # which tie embeddings of both sides
        head = model.get_output_embeddings()
        head.weight = torch.nn.Parameter(0.3 * torch.randn_like(head.weight))
    return model


def policy_around(model, **kwargs):
    env = make_env(TOKENIZER, vocab_size=model.get_input_embeddings().weight.shape[0])
    return make_policy(env, model, **kwargs)


def settings_for(name, target):
    names = {"attention": ATTENTION[name], "embedding": EMBEDDING[name]}
    return {
        key: [names.get(each, each) for each in value]
        if isinstance(value, list) and key != "trainable_token_indices"
        else value
        for key, value in {"r": 4, "lora_alpha": 8, **TARGETS[target]}.items()
    }


def trained(policy):
    """The policy with other trained weights, as after some updates."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in policy.actor_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return policy


def replies():
    prompts = [[3, 4, 5], [6, 7], [8]]
    return Replies.from_ids(prompts, [[9, 10, 11, 0], [12, 3, 0], [4, 5, 6, 7, 8]], torch.device("cpu"))


def log_probs(policy):
    return policy.sequence_log_probs(replies())


def same(found, expected):
    return torch.allclose(found, expected, atol=5e-5)


@pytest.mark.parametrize(("name", "tied", "target"), covering(MODELS, (True, False), TARGETS))
def test_every_saved_form_is_the_trained_policy(name, tied, target, tmp_path):
    settings = settings_for(name, target)
    initial = log_probs(policy_around(make_model(name, tied)))
    policy = trained(policy_around(make_model(name, tied), lora=settings, gradient_checkpointing=True))
    expected = log_probs(policy)
    assert not same(expected, initial)
    assert same(policy.reference_log_probs(replies()), initial)
    save_policy(policy, tmp_path)

    published = load_model(policy.auto_class, str(tmp_path / MODEL_FOLDER), "model", "")
    assert same(log_probs(policy_around(published)), expected)
    adapted = make_model(name, tied)
    peft.PeftModel.from_pretrained(adapted, str(tmp_path / MODEL_FOLDER / ADAPTER_FOLDER), is_trainable=True).eval()
    assert same(log_probs(policy_around(adapted, reference="none", critic="none")), expected)
    resumed = policy_around(make_model(name, tied), lora=settings)
    load_policy_weights(resumed, tmp_path)
    assert torch.equal(log_probs(resumed), expected)
    assert torch.equal(resumed.predict_sequence_values(replies()), policy.predict_sequence_values(replies()))


@pytest.mark.parametrize("target", ["attention", "head", "whole head", "embedding"])
def test_config_says_whether_the_published_head_is_the_embedding(target, tmp_path):
    """Programs such as vLLM and llama.cpp's converter go by the config, which vLLM gets before the training."""
    policy = policy_around(make_model("llama", tied=True), lora=settings_for("llama", target))
    is_tied = target == "attention"
    assert policy.language_model.config.tie_word_embeddings == is_tied
    trained(policy)
    save_policy(policy, tmp_path)
    published = load_model(policy.auto_class, str(tmp_path / MODEL_FOLDER), "model", "")
    assert published.config.tie_word_embeddings == is_tied


UNREAD = "read embeddings of their own, which are named 'embed_tokens'"


@pytest.mark.parametrize(
    ("name", "lora", "message"),
    [
        ("t5", {"target_modules": ["shared"]}, UNREAD),
        ("bart", {"target_modules": ["lm_head"], "modules_to_save": ["shared"]}, UNREAD),
        ("llama", {"r": 100_000}, "lora.r is 100,000, but no layer of the model has a rank above 32; lower it"),
        ("llama", {"target_modules": ["embed_tokens", "lm_head"], "ensure_weight_tying": True}, "cannot be merged"),
    ],
)
def test_adapters_that_would_be_lost_are_refused(name, lora, message):
    with pytest.raises(ConfigError, match=message):
        policy_around(make_model(name, tied=True), lora=lora)


@pytest.mark.parametrize(
    "settings",
    [{"bias": "all"}, {"bias": "lora_only"}, {"init_lora_weights": "pissa_niter_4"}, {"init_lora_weights": "olora"}],
)
def test_settings_that_would_move_the_reference_are_refused(settings):
    check_restores({"init_lora_weights": "gaussian", "bias": "none"})
    check_restores({"init_lora_weights": False})
    with pytest.raises(ConfigError, match=f"lora.{next(iter(settings))}: .* reference"):
        check_restores(settings)


@pytest.mark.parametrize("key", ["target_modules", "modules_to_save", "exclude_modules"])
def test_modules_that_the_model_does_not_have_are_named(key):
    def build(*names):
        targets = ["c_attn", *(names if key == "target_modules" else ())]
        policy_around(make_model("gpt2", tied=True), lora={key: [*names], "target_modules": targets})

    build("h.1.mlp.c_proj")
    with pytest.raises(ConfigError, match=f"lora.{key}: the model has no module 'c_prjo'; did you mean 'c_proj'"):
        build("h.1.mlp.c_proj", "c_prjo")


def test_same_weights_have_the_same_hash_and_one_bit_changes_it():
    tokenizer = make_tokenizer()
    model = make_gpt2(tokenizer)
    before = weights_hash(model)
    assert before == weights_hash(make_gpt2(tokenizer)) != weights_hash(make_gpt2(tokenizer, seed=1))
    weight = model.get_input_embeddings().weight
    with torch.no_grad():
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    assert weights_hash(model) != before
    one, two = torch.ones(2, dtype=torch.bfloat16), torch.zeros(())
    assert tensors_hash({"a": one, "b": two}) == tensors_hash({"b": two, "a": one}) != tensors_hash({"c": one})


LORA = {"r": 2, "target_modules": ["c_attn"], "init_lora_weights": False}
BATCH = Replies.from_ids([[3, 4], [5]], [[6, 7, 8], [9, 10]])


def policy_of(lora=None, **kwargs):
    return make_policy(make_env(TOKENIZER), make_gpt2(TOKENIZER), lora=lora, **kwargs)


def actor(policy):
    return [p.detach().clone() for p in policy.actor_parameters()]


def shift(policy, seed):
    random = torch.Generator().manual_seed(seed)
    for parameter in policy.actor_parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=random)


@pytest.mark.parametrize("offload_reference", [False, True])
@pytest.mark.parametrize("lora", [None, LORA])
def test_average_is_that_of_the_weights_after_each_iteration(lora, offload_reference):
    if lora is not None and offload_reference:
        pytest.skip("there is no model to offload")
    policy = policy_of(lora, reference="ema", reference_decay=0.7, offload_reference=offload_reference)
    expected = actor(policy)
    for iteration in (1, 2):
        shift(policy, iteration)
        expected = [0.7 * old + 0.3 * new for old, new in zip(expected, actor(policy), strict=True)]
        policy.update_reference(iteration)
    before = actor(policy)
    found = policy.reference_log_probs(BATCH)
    assert all(torch.equal(one, other) for one, other in zip(before, actor(policy), strict=True))
    own = policy.sequence_log_probs(BATCH)
    for parameter, value in zip(policy.actor_parameters(), expected, strict=True):
        parameter.data = value
    torch.testing.assert_close(found, policy.sequence_log_probs(BATCH), rtol=1e-5, atol=1e-5)
    assert (found - own).abs().max() > 1e-3


@pytest.mark.parametrize("lora", [None, LORA])
def test_reset_copies_the_policy_every_few_iterations(lora):
    policy = policy_of(lora, reference="reset", reference_every=2)
    first = policy.reference_log_probs(BATCH)
    torch.testing.assert_close(first, policy.sequence_log_probs(BATCH))
    shift(policy, 1)
    policy.update_reference(1)
    assert torch.equal(policy.reference_log_probs(BATCH), first)
    policy.update_reference(2)
    torch.testing.assert_close(policy.reference_log_probs(BATCH), policy.sequence_log_probs(BATCH))
    assert all(not parameter.requires_grad for parameter in (policy._moving_reference or policy).parameters())
    initial = policy_of(lora)
    initial.update_reference(1)
    assert initial.states() == {}


def test_gradients_survive_the_swap_of_adapters():
    policy = policy_of(LORA, reference="ema", reference_decay=0.5)
    shift(policy, 1)
    grads = []
    for uses_reference in (False, True):
        policy.optimizer.zero_grad()
        _, log_probs, _ = policy.evaluate_actions(BATCH.observations, BATCH.flat("response_ids"))
        if uses_reference:
            policy.reference_log_probs(BATCH)
        log_probs.sum().backward()
        grads.append([p.grad.clone() for p in policy.actor_parameters() if p.grad is not None])
    assert grads[0] and all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"0.exp_avg": torch.zeros(3, 2)}, r"damaged: 0.exp_avg has the shape \(3, 2\), and its parameter \(2, 3\)"),
        ({"1.exp_avg_sq": torch.full((4,), torch.nan)}, "damaged: 1.exp_avg_sq .* not finite"),
        ({"1.exp_avg": None}, "lacks a part of the state of some parameters"),
        ({"2.exp_avg": torch.zeros(4)}, "more than 2 trained parameters"),
        ({"x.exp_avg": torch.zeros(4)}, "more than 2 trained parameters"),
    ],
)
def test_state_of_an_optimizer_that_does_not_fit_is_refused(change, words):
    parameters = [torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(4))]
    optimizer = torch.optim.AdamW(parameters)
    sum(each.sum() for each in parameters).backward()
    optimizer.step()
    tensors = optimizer_tensors(optimizer)
    restore_optimizer(optimizer, tensors, Path("whole"))
    damaged = {name: tensor for name, tensor in {**tensors, **change}.items() if tensor is not None}
    with pytest.raises(ModelError, match=words):
        restore_optimizer(optimizer, damaged, Path("optimizer.safetensors"))
