"""What only a GPU can show: it computes what the CPU computes. Skipped where there is none."""

import pytest
import torch
from rows import batch_with_repeats
from tiny import MODELS, policy_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def outputs_and_gradients(architecture, device, **kwargs):
    policy = policy_of(architecture, **kwargs).to(device)
    batch = batch_with_repeats().to(device)
    outputs = policy.evaluate_actions(batch.observations, batch.flat("response_ids"))
    (outputs[0].square().sum() + outputs[1].sum() + outputs[2].sum()).backward()
    grads = [p.grad for p in [*policy.actor_parameters(), *policy.critic_parameters()] if p.grad is not None]
    return [tensor.detach().cpu() for tensor in (*outputs, *grads)]


@pytest.mark.parametrize("critic", ["separate", "shared"])
@pytest.mark.parametrize("architecture", MODELS)
def test_log_probs_values_and_gradients_are_those_of_the_cpu(architecture, critic):
    on_cpu, on_gpu = (outputs_and_gradients(architecture, device, critic=critic) for device in ("cpu", "cuda"))
    # Of all tensors, because gradients of biases that change nothing (of BART's keys) are rounding alone.
    largest = max(tensor.abs().max().item() for tensor in on_cpu)
    for one, other in zip(on_cpu, on_gpu, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6 * largest)


@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("kwargs", [{}, {"num_beams": 3}], ids=["greedy", "beam search"])
def test_chosen_replies_are_those_of_the_cpu(architecture, kwargs):
    replies = []
    for device in ("cpu", "cuda"):
        observations = {name: tensor.to(device) for name, tensor in batch_with_repeats().observations.items()}
        found = policy_of(architecture).to(device).generate(observations, do_sample=False, max_length=8, **kwargs)
        replies.append(found.response_ids.masked_fill(~found.response_mask, -1).tolist())
    assert replies[0] == replies[1]
