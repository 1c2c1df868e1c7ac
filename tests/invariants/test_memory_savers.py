"""What saves memory or time changes nothing else: bf16, LoRA, recomputed activations, an offloaded reference."""

import copy

import pytest
import torch
from covering import covering
from rows import evaluated
from tiny import MODELS, make_env, make_gpt2, make_llama, make_policy, make_tokenizer, maskable_class_of

from rl4dialog.core.errors import ConfigError, ModelError
from rl4dialog.functional.replies import Replies
from rl4dialog.policies.lora import LoRA
from rl4dialog.policies.saving import load_optimizer, load_policy_weights, save_policy

TOKENIZER = make_tokenizer()
LORA = {"r": 2, "lora_alpha": 8}


def policy_of(architecture, seed=0, **kwargs):
    model = MODELS[architecture](TOKENIZER, seed)
    env = make_env(TOKENIZER, vocab_size=model.get_input_embeddings().weight.shape[0])
    return make_policy(env, model, **kwargs)


def batch_of(n=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    prompt_mask, response_mask = torch.ones(n, 6, dtype=torch.bool), torch.ones(n, 4, dtype=torch.bool)
    prompt_mask[0, :3], response_mask[1, 2:] = False, False
    ids = torch.randint(3, len(TOKENIZER), (n, 10), generator=generator)
    return Replies(ids[:, :6], prompt_mask, ids[:, 6:], response_mask)


def gradients(policy, batch):
    log_probs, values, entropies = evaluated(policy, batch)
    (log_probs.sum() + values.square().sum() + entropies.sum()).backward()
    return [p.grad for p in [*policy.actor_parameters(), *policy.critic_parameters()] if p.grad is not None]


def shake(policy):
    """Move every trained weight, as training would."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in [*policy.actor_parameters(), *policy.critic_parameters()]:
            parameter.add_(0.1 * torch.randn_like(parameter))


@pytest.mark.parametrize(("architecture", "critic"), covering(MODELS, ("separate", "shared")))
def test_recomputed_activations_give_the_same_gradients(architecture, critic):
    batch = batch_of()
    kept = gradients(policy_of(architecture, critic=critic), batch)
    recomputed = gradients(policy_of(architecture, critic=critic, gradient_checkpointing=True), batch)
    assert len(kept) == len(recomputed) > 0
    for one, other in zip(kept, recomputed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(("architecture", "kwargs"), [("llama", {"lora": LORA}), ("t5", {"critic": "separate"})])
def test_compiled_layers_give_the_same_gradients_and_replies(architecture, kwargs, monkeypatch):
    compiled_with = []

    def compile_without_compiler(layer):
        compiled_with.append(layer)
        layer._compiled_call_impl = torch.compile(layer._call_impl, backend="aot_eager")

    monkeypatch.setattr(torch.nn.Module, "compile", compile_without_compiler)
    batch, found = batch_of(), []
    for compiles in (False, True):
        policy = policy_of(architecture, compile=compiles, **kwargs)
        of_pass = gradients(policy, batch)
        if architecture == "llama":
            policy.sampler = "graph"
        replies = policy.generate(batch.observations, do_sample=False)
        found.append([*of_pass, replies.log_probs])
        assert bool(compiled_with) == compiles and (architecture == "t5" or policy._graph_sampler is not None)
    assert len(found[0]) == len(found[1]) > 1
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_layers_of_a_kind_are_compiled_once(monkeypatch):
    counts, compiled = [], []

    def counted(graph, inputs):
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr(
        torch.nn.Module,
        "compile",
        lambda layer: setattr(layer, "_compiled_call_impl", torch.compile(layer._call_impl, backend=counted)),
    )
    for n_layers in (2, 5):
        torch._dynamo.reset()
        compiled.clear()
        model = make_llama(TOKENIZER, num_hidden_layers=n_layers)
        policy = make_policy(make_env(TOKENIZER), model, critic="none", compile=True)
        batch = batch_of()
        policy.evaluate_actions(batch.observations, batch.flat("response_ids"))
        for policy.sampler in ("transformers", "graph"):
            policy.generate(batch.observations, min_length=5)  # rows that end early would be left out of the batch
        counts.append(len(compiled))
    assert 0 < counts[0] == counts[1], "not one more for each layer"


def test_recomputing_keeps_fewer_activations():
    def saved_bytes(policy):
        total = 0

        def count(tensor):
            nonlocal total
            total += tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            evaluated(policy, batch_of())
        return total

    kept, recomputed = (saved_bytes(policy_of("gpt2", gradient_checkpointing=flag)) for flag in (False, True))
    assert recomputed < 0.7 * kept


@pytest.mark.parametrize("architecture", MODELS)
def test_bf16_log_probs_and_values_are_near_those_of_fp32(architecture):
    batch = batch_of()
    exact, rounded = policy_of(architecture), policy_of(architecture, precision="bf16")
    shake(exact)
    shake(rounded)
    for one, other in zip(evaluated(exact, batch), evaluated(rounded, batch), strict=True):
        assert other.dtype == torch.float32
        # Numbers of 8 bits through two layers.
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.15)
    assert not torch.equal(evaluated(exact, batch)[0], evaluated(rounded, batch)[0])
    assert all(p.dtype == torch.float32 for p in rounded.actor_parameters())


@pytest.mark.parametrize("architecture", MODELS)
def test_bf16_sampler_and_trainer_agree(architecture):
    policy = policy_of(architecture, precision="bf16")
    batch = batch_of()
    replies = policy.generate({"prompt_ids": batch.prompt_ids, "prompt_mask": batch.prompt_mask})
    with torch.no_grad():
        log_probs, _, _ = evaluated(policy, replies)
    torch.testing.assert_close(log_probs, replies.log_probs, rtol=0.05, atol=0.15)
    # At the start, the reference is the policy, by the same passes.
    torch.testing.assert_close(policy.reference_log_probs(replies), log_probs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("architecture", "precision"), covering(MODELS, ("fp32", "bf16")))
def test_lora_trains_adapters_alone_and_is_its_own_reference(architecture, precision):
    batch = batch_of()
    policy = policy_of(architecture, lora=LORA, precision=precision)
    assert policy._reference_model is None
    before = policy.reference_log_probs(batch)
    torch.testing.assert_close(evaluated(policy, batch)[0].detach(), before, rtol=0, atol=1e-6)
    frozen = {n: p.clone() for n, p in policy.named_parameters() if not p.requires_grad}
    assert all(
        "lora_" in n or n.startswith("_value_head.output") for n, p in policy.named_parameters() if p.requires_grad
    )
    for _ in range(3):
        policy.optimizer.zero_grad()
        gradients(policy, batch)
        policy.optimizer.step()
    shake(policy)
    assert not torch.allclose(evaluated(policy, batch)[0], before, atol=1e-3)
    torch.testing.assert_close(policy.reference_log_probs(batch), before, rtol=0, atol=0)
    for name, parameter in policy.named_parameters():
        if name in frozen:
            assert torch.equal(parameter, frozen[name]), name
    # Asking the reference between forward and backward must not cost the adapters their gradient.
    log_probs, _, _ = evaluated(policy, batch)
    policy.reference_log_probs(batch)
    policy.optimizer.zero_grad()
    log_probs.sum().backward()
    assert all(p.grad is not None for p in policy.actor_parameters())


@pytest.mark.parametrize("mask_type", ["reference_top_k", "learned_top_k"])
def test_lora_goes_with_a_mask(mask_type):
    model = make_gpt2(TOKENIZER)
    plain = make_env(TOKENIZER)
    policies = []
    for lora in (None, LORA):
        cls = maskable_class_of(model)
        arguments = {"top_mask": 3, "mask_type": mask_type, "lora": lora}
        policies.append(make_policy(plain, copy.deepcopy(model), policy_class=cls, **arguments))
    batch = batch_of()
    one, other = (evaluated(policy, batch)[2] for policy in policies)
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    policies[1].generate({"prompt_ids": batch.prompt_ids, "prompt_mask": batch.prompt_mask})


def test_adapters_of_another_rank_and_a_folder_without_any_are_refused(tmp_path):
    save_policy(policy_of("gpt2", lora=LORA), tmp_path)
    with pytest.raises(ModelError, match="adapter"):
        load_policy_weights(policy_of("gpt2", lora={"r": 3}), tmp_path)
    with pytest.raises(ModelError, match="adapter"):
        load_policy_weights(policy_of("gpt2", lora=LORA), tmp_path / "nowhere")


def test_lora_settings_that_fit_nothing_are_refused():
    for settings, words in (
        ({"rr": 2}, r"lora\.rr.*'r'"),
        ({"r": 0}, r"lora\.r must be a whole number"),
        ({"target_modules": ["q_proj"]}, r"no module 'q_proj'; did you mean 'c_proj'"),
        ({"target_modules": ["experts"]}, r"can be c_attn, c_fc, c_proj"),
    ):
        with pytest.raises(ConfigError, match=words):
            LoRA(make_gpt2(TOKENIZER), settings)


@pytest.mark.parametrize("architecture", ["gpt2", "t5"])
def test_lora_of_a_layer_that_the_model_lacks_is_refused(architecture):
    policy_of(architecture, lora={**LORA, "layers_to_transform": [0, 1]})
    with pytest.raises(ConfigError, match=r"lora\.layers_to_transform: the model has the layers 0 to 1, not 2"):
        policy_of(architecture, lora={**LORA, "layers_to_transform": [1, 2]})


def test_an_offloaded_reference_gives_the_same_log_probs():
    batch = batch_of()
    here, there = policy_of("gpt2"), policy_of("gpt2", offload_reference=True)
    assert torch.equal(here.reference_log_probs(batch), there.reference_log_probs(batch))


@pytest.mark.parametrize("lora", [None, LORA])
def test_without_a_reference_the_kl_is_zero_and_nothing_is_kept(lora):
    policy = policy_of("gpt2", reference="none", lora=lora)
    shake(policy)
    assert policy._reference_model is None
    batch = batch_of()
    replies = policy.generate({"prompt_ids": batch.prompt_ids, "prompt_mask": batch.prompt_mask})
    assert torch.equal(policy.reference_log_probs(replies), replies.unmasked_log_probs)
    own = policy.sequence_log_probs(batch)
    assert torch.equal(policy.reference_log_probs(batch), own), "of what was not sampled here, the policy's own"


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ConfigError, match=r"unknown 'adm'.*'adam'"):
        policy_of("gpt2", optimizer_class="adm")
    adamw = policy_of("gpt2", optimizer_class="adamw", weight_decay=0.25).optimizer
    assert isinstance(adamw, torch.optim.AdamW) and adamw.defaults["weight_decay"] == 0.25


@pytest.mark.parametrize("name", ["adam_8bit", "adamw_8bit"])
def test_8_bit_optimizers_keep_their_moments_in_bytes_and_are_resumed(name, tmp_path):
    pytest.importorskip("bitsandbytes")
    policy = make_policy(make_env(TOKENIZER), make_gpt2(TOKENIZER, n_embd=64), optimizer_class=name)
    before = [p.detach().clone() for p in policy.actor_parameters()]
    gradients(policy, batch_of())
    policy.optimizer.step()
    assert any(not torch.equal(p, old) for p, old in zip(policy.actor_parameters(), before, strict=True))
    moments = [state["state1"] for state in policy.optimizer.state.values()]
    assert any(moment.dtype == torch.uint8 for moment in moments)

    save_policy(policy, tmp_path)
    again = make_policy(make_env(TOKENIZER), make_gpt2(TOKENIZER, n_embd=64), optimizer_class=name)
    load_policy_weights(again, tmp_path)
    load_optimizer(again.optimizer, tmp_path)
    for one in (policy, again):
        one.optimizer.zero_grad()
        gradients(one, batch_of())
        one.optimizer.step()
    for parameter, other in zip(policy.actor_parameters(), again.actor_parameters(), strict=True):
        assert torch.equal(parameter, other)
