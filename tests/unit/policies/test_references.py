"""References that follow the policy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import make_env, make_gpt2, make_policy, make_tokenizer

from rl4dialog.functional.replies import Replies
from rl4dialog.policies.base import LMActorCriticPolicy

LORA = {"r": 2, "target_modules": ["c_attn"], "init_lora_weights": False}
TOKENIZER = make_tokenizer()
BATCH = Replies.from_ids([[3, 4], [5]], [[6, 7, 8], [9, 10]])


def policy_of(lora: Any = None, **kwargs: Any) -> LMActorCriticPolicy:
    return make_policy(make_env(TOKENIZER), make_gpt2(TOKENIZER), lora=lora, **kwargs)


def actor(policy: LMActorCriticPolicy) -> list[torch.Tensor]:
    return [p.detach().clone() for p in policy.actor_parameters()]


def shift(policy: LMActorCriticPolicy, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    for parameter in policy.actor_parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=random)


@pytest.mark.parametrize("offload_reference", [False, True])
@pytest.mark.parametrize("lora", [None, LORA])
def test_average_is_that_of_the_weights_after_each_iteration(lora: Any, offload_reference: bool) -> None:
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
def test_reset_copies_the_policy_every_few_iterations(lora: Any) -> None:
    policy = policy_of(lora, reference="reset", reference_every=2)
    first = policy.reference_log_probs(BATCH)
    torch.testing.assert_close(first, policy.sequence_log_probs(BATCH))
    shift(policy, 1)
    policy.update_reference(1)
    assert torch.equal(policy.reference_log_probs(BATCH), first)
    policy.update_reference(2)
    torch.testing.assert_close(policy.reference_log_probs(BATCH), policy.sequence_log_probs(BATCH))
    assert all(not parameter.requires_grad for parameter in (policy._moving_reference or policy).parameters())


def test_initial_reference_never_moves() -> None:
    policy = policy_of()
    first = policy.reference_log_probs(BATCH)
    shift(policy, 1)
    policy.update_reference(1)
    assert torch.equal(policy.reference_log_probs(BATCH), first) and policy.reference_state() == {}


def test_gradients_survive_the_swap_of_adapters() -> None:
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
