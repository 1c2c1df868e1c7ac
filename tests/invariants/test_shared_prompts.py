"""Prompts that several replies share are read once, and nothing else changes."""

import pytest
import torch
from rows import batch_with_repeats, evaluated
from tiny import MODELS, policy_of


def positions_read(module, batch, policy):
    seen = []
    handle = module.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[:2].numel()))
    with torch.no_grad():
        evaluated(policy, batch)
    handle.remove()
    return sum(seen)


@pytest.mark.parametrize("critic", ["separate", "shared"])
@pytest.mark.parametrize("architecture", MODELS)
def test_log_probs_values_and_gradients_stay(architecture, critic):
    batch = batch_with_repeats()
    results = []
    for share_prompts in (True, False):
        policy = policy_of(architecture, critic=critic, share_prompts=share_prompts)
        outputs = evaluated(policy, batch)
        (outputs[0].sum() + outputs[1].square().sum() + outputs[2].sum()).backward()
        grads = [p.grad for p in [*policy.actor_parameters(), *policy.critic_parameters()] if p.grad is not None]
        results.append([*(tensor.detach() for tensor in outputs), *grads])
    for shared, apart in zip(*results, strict=True):
        # What is added up in another order is off by a share of the largest numbers, not of each one.
        torch.testing.assert_close(shared, apart, rtol=1e-4, atol=1e-5 * max(1.0, float(apart.abs().max())))


def test_a_causal_model_reads_shared_prompts_once():
    batch = batch_with_repeats()
    shared, apart = (policy_of("gpt2", critic="shared", share_prompts=flag) for flag in (True, False))
    count = [positions_read(policy.language_model.transformer.wte, batch, policy) for policy in (shared, apart)]
    assert count == [2 * 5 + 6 * 3, 6 * 8]


def test_an_encoder_reads_shared_prompts_once():
    batch = batch_with_repeats()
    policy = policy_of("t5", critic="shared")
    rows = []
    handle = policy.language_model.encoder.register_forward_hook(
        lambda module, inputs, output: rows.append(len(output.last_hidden_state))
    )
    with torch.no_grad():
        evaluated(policy, batch)
    policy.generate({"prompt_ids": batch.prompt_ids, "prompt_mask": batch.prompt_mask})
    handle.remove()
    assert rows == [2, 2]


@pytest.mark.parametrize("architecture", MODELS)
def test_greedy_replies_to_one_prompt_are_those_that_it_gets_alone(architecture):
    batch = batch_with_repeats()
    policy = policy_of(architecture)
    obs = {"prompt_ids": batch.prompt_ids, "prompt_mask": batch.prompt_mask}
    together = policy.generate(obs, do_sample=False)
    for row in range(6):
        alone = policy.generate({name: tensor[row : row + 1] for name, tensor in obs.items()}, do_sample=False)
        n = int(alone.response_mask.sum())
        assert torch.equal(together.response_ids[row, :n], alone.response_ids[0])
        torch.testing.assert_close(together.log_probs[row, :n], alone.log_probs[0], rtol=1e-4, atol=1e-5)
