"""Casts of all weights at once give the numbers and gradients of autocast's own, and leave the model as it was."""

import pytest
import torch
from tiny import MODELS, make_tokenizer

from rl4dialog.policies.casts import cast_at_once, in_place, tensors_at, wide_places
from rl4dialog.policies.lora import LoRA
from rl4dialog.policies.models import _NEW_GELU


def outputs_and_gradients(model, at_once):
    ids = torch.arange(12).view(2, 6) % 7 + 2
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        if at_once:
            with cast_at_once(model, torch.bfloat16):
                found = model(input_ids=ids).logits
        else:
            found = model(input_ids=ids).logits
    found.float().square().mean().backward()
    return [found, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_numbers_and_gradients_are_those_of_autocast(architecture):
    model = MODELS[architecture](make_tokenizer(), 0)
    before = dict(model.named_parameters())
    both = [outputs_and_gradients(model, at_once) for at_once in (False, True)]
    assert len(both[0]) == len(both[1]) > 10
    assert all(torch.equal(one, other) for one, other in zip(*both, strict=True))
    assert {name: id(p) for name, p in model.named_parameters()} == {name: id(p) for name, p in before.items()}


def test_frozen_weights_get_no_gradient_and_narrow_norms_are_widened():
    model = MODELS["gpt2"](make_tokenizer(), 0).bfloat16()
    LoRA(model, {"r": 2})
    norm = next(each for each in model.modules() if isinstance(each, torch.nn.LayerNorm))
    with cast_at_once(model, torch.bfloat16):
        assert norm.weight.dtype == torch.float32
    assert norm.weight.dtype == torch.bfloat16
    outputs_and_gradients(model, True)
    assert {p.requires_grad for p in model.parameters() if p.grad is not None} == {True}


def test_parameters_are_back_after_an_error():
    model = MODELS["llama"](make_tokenizer(), 0)
    places = wide_places(model, torch.bfloat16)
    own = tensors_at(places)
    with pytest.raises(RuntimeError, match="of a pass"), in_place(places, [None] * len(places)):
        raise RuntimeError("of a pass")
    assert all(one is other for one, other in zip(own, tensors_at(places), strict=True))


def test_fused_activation_is_the_same_up_to_rounding():
    x = torch.linspace(-6, 6, 1001)
    fused = torch.nn.functional.gelu(x, approximate="tanh")
    torch.testing.assert_close(fused, _NEW_GELU(x), rtol=0, atol=1e-6)
