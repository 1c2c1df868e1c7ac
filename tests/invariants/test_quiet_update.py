"""An update waits for the device nowhere, if the device can skip a step: no loss, mask, count or norm is read back.

Operations of a minibatch, and of a step of the sampler, are counted, so that none is added unseen: on a GPU, with few
and short replies, time goes with their number.
"""

import pytest
import torch
from collected import collected
from counting import Counted, watched
from learn import ALGORITHMS
from tiny import MODELS, make_tokenizer

from rl4dialog.policies import gradient_steps
from rl4dialog.policies.gradient_steps import StepGuard
from rl4dialog.policies.graph_sampler import GraphSampler

# Forward and backward passes of a model of two layers, with all losses; measured, and rounded up by a twentieth.
MOST = {("gpt2", "ppo"): 342, ("gpt2", "rloo"): 260, ("llama", "ppo"): 612, ("llama", "rloo"): 439}
MOST_IN_STEP = {"gpt2": 92, "llama": 137}


@pytest.mark.parametrize("name", ["ppo", "rloo", "grpo", "nlpo"])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_an_update_reads_nothing(architecture, name, monkeypatch):
    cls, settings = ALGORITHMS[name]
    settings = {**settings, "batch_size": 30, "policy_kwargs": {"share_prompts": False}}
    algorithm = collected(cls, n_steps=20, model=MODELS[architecture](make_tokenizer()), n_envs=8, **settings)
    monkeypatch.setattr(gradient_steps, "skips_by_itself", lambda *args: True)  # as on a GPU
    of_passes, of_steps = Counted(), Counted()
    monkeypatch.setattr(cls, "_terms", watched(cls._terms, of_passes))
    monkeypatch.setattr(torch.Tensor, "backward", watched(torch.Tensor.backward, of_passes))
    monkeypatch.setattr(StepGuard, "step", watched(StepGuard.step, of_steps))
    algorithm.train()
    n_steps = int(next(iter(algorithm.policy.optimizer.state.values()))["step"])
    assert n_steps > 2 and of_passes.reads == of_steps.reads == []
    n_operations = of_passes.operations.total() / n_steps
    assert n_operations <= MOST.get((architecture, name), 1e9), of_passes.operations.most_common(20)


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_a_step_of_the_sampler_reads_nothing(architecture, monkeypatch):
    cls, settings = ALGORITHMS["ppo"]
    algorithm = collected(cls, n_steps=20, model=MODELS[architecture](make_tokenizer()), n_envs=8, **settings)
    policy, steps = algorithm.policy, Counted()
    policy.sampler = "graph"
    assert policy._graph_sampler is not None
    n_steps, step = [], watched(GraphSampler._step, steps)
    monkeypatch.setattr(GraphSampler, "_step", lambda *args: (n_steps.append(1), step(*args)))
    prompts = torch.arange(24).view(6, 4) % 7 + 3
    policy.generate({"prompt_ids": prompts, "prompt_mask": torch.ones_like(prompts, dtype=torch.bool)}, min_length=3)
    assert n_steps and steps.reads == []
    assert steps.operations.total() / len(n_steps) <= MOST_IN_STEP[architecture], steps.operations.most_common(20)
