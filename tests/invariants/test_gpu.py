"""What only a GPU can show: it computes what the CPU computes. Skipped where there is none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from architectures import CAUSAL, make_model
from rows import batch_with_repeats
from tiny import MODELS, make_env, make_policy, make_tokenizer, policy_of

from rl4dialog.features.inspection.graph_check import compare, fallback
from rl4dialog.policies import base
from rl4dialog.policies.decoding import tolerance
from rl4dialog.policies.models import UNCAPTURED
from rl4dialog.text.end_of_turn import EndOfTurn

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


def compared(name, precision="bf16"):
    """What is found with an architecture: the reason against graphs, or the differences of replies from graphs."""
    windows = {"sliding_window": 64} if "sliding_window" in CAUSAL[name] else {}
    model, tokenizer = make_model(name, **windows), make_tokenizer()
    env = make_env(
        tokenizer,
        vocab_size=model.get_input_embeddings().weight.shape[0],
        max_prompt_length=12,
        max_episode_length=10,
        end_of_turn=EndOfTurn(tokenizer, [0, 5, 8, 11]),
    )
    policy = make_policy(env, model, critic="none", precision=precision).to("cuda")
    policy.sampler = "auto"
    if reason := policy.eager_reason(policy.settings):
        return {"reason": reason}
    found = compare(policy, [[3, 4, 5], [6], [7, 8, 9, 10, 3], [4, 4]] * 2, n_turns=1)
    with policy._autocast():
        return {**found, "fallback": fallback(policy), "tolerance": tolerance(model)}


@pytest.mark.parametrize("name", CAUSAL)
def test_each_architecture_is_captured_or_known_not_to_be(name):
    found = compared(name)
    assert "reason" in found or found["fallback"] is None
    if "reason" not in found:
        assert max(found["difference_to_loop"], found["difference_to_training"]) <= found["tolerance"]


@pytest.mark.parametrize(("name", "precision"), [*((name, "bf16") for name in UNCAPTURED), ("mixtral", "fp32")])
def test_what_is_said_to_refuse_a_capture_does(name, precision):
    paths = [str(Path(__file__).parent), *sys.path]
    code = f"import sys; sys.path[:0] = {paths!r}; import test_gpu; test_gpu.try_to_capture({name!r}, {precision!r})"
    # In a process of its own, which a capture that fails spoils.
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert output.returncode == 0, output.stderr[-500:]
    found = json.loads(output.stdout.splitlines()[-1])
    assert found["fallback"] is not None, "it can be captured now: remove it from models.yaml"


def try_to_capture(name, precision):
    base.uncaptured = lambda *args: None  # as if nothing were known
    print(json.dumps(compared(name, precision)))
