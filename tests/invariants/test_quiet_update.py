"""An update waits for the device once per optimizer step: no loss, mask or count is read back in between.

transformers reads one or two numbers in each pass, which is not ours to change.
"""

import sys

import pytest
import torch
from collected import collected
from learn import ALGORITHMS
from tiny import MODELS, make_tokenizer
from torch.utils._python_dispatch import TorchDispatchMode

from rl4dialog.policies.gradient_steps import StepGuard

# On a GPU, each of these waits until it is done with all that was asked of it before.
READS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "bincount", "equal", "is_nonzero")


class Reads(TorchDispatchMode):
    """Lists operations whose result Python has to know, or whose shape depends on numbers."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(each is not None and each.dtype == torch.bool for each in args[1])
        if (name in READS or by_mask) and "transformers" not in caller():
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def caller():
    """File of the function outside of torch that called an operation."""
    frame = sys._getframe(2)
    while "/torch/" in frame.f_code.co_filename:
        frame = frame.f_back
    return frame.f_code.co_filename


@pytest.mark.parametrize("name", ["ppo", "rloo", "grpo", "nlpo"])
@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_only_the_norm_of_the_gradient_is_read(architecture, name, monkeypatch):
    cls, settings = ALGORITHMS[name]
    settings = {**settings, "batch_size": 30, "policy_kwargs": {"share_prompts": False}}
    algorithm = collected(cls, n_steps=20, model=MODELS[architecture](make_tokenizer()), n_envs=8, **settings)
    of_passes, of_steps = Reads(), Reads()

    def watched(function, reads):
        def call(*args, **kwargs):
            with reads:
                return function(*args, **kwargs)

        return call

    monkeypatch.setattr(cls, "_terms", watched(cls._terms, of_passes))
    monkeypatch.setattr(torch.Tensor, "backward", watched(torch.Tensor.backward, of_passes))
    monkeypatch.setattr(StepGuard, "step", watched(StepGuard.step, of_steps))
    algorithm.train()
    assert of_passes.found == []
    n_steps = next(iter(algorithm.policy.optimizer.state.values()))["step"]
    assert n_steps > 2 and of_steps.found == ["_local_scalar_dense"] * int(n_steps)
