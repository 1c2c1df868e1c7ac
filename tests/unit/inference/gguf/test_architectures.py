"""Weights get llama.cpp's names and layout; what its files cannot say about a model is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gguf_models import byte_level, tiny_model

from rl4dialog.core.errors import ModelError
from rl4dialog.inference.gguf.architectures import ARCHITECTURES, architecture_of, stored_weights


def stored(model: Any) -> dict[str, torch.Tensor]:
    return dict(stored_weights(model, architecture_of(model)))


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_is_stored_once(name: str, tied: bool) -> None:
    model = tiny_model(name, byte_level(), tie_word_embeddings=tied)
    found = stored(model)
    assert len(found) == len(list(model.parameters()))
    assert ("output.weight" in found) != tied
    assert sum(weight.numel() for weight in found.values()) == model.num_parameters()


def test_gpt2_weights_are_transposed() -> None:
    model = tiny_model("gpt2", byte_level())
    found, layer = stored(model), model.transformer.h[1]
    assert torch.equal(found["blk.1.attn_qkv.weight"], layer.attn.c_attn.weight.T)
    assert torch.equal(found["blk.1.ffn_down.weight"], layer.mlp.c_proj.weight.T)
    assert torch.equal(found["position_embd.weight"], model.transformer.wpe.weight)


def test_llama_keys_alternate_the_halves_of_a_head() -> None:
    model = tiny_model("llama", byte_level())  # 2 heads of keys, 8 rotary dimensions each
    found, layer = stored(model), model.model.layers[0].self_attn
    rows = [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]
    assert torch.equal(found["blk.0.attn_k.weight"], layer.k_proj.weight[rows])
    assert torch.equal(found["blk.0.attn_v.weight"], layer.v_proj.weight)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bloom", {}, r"architecture 'bloom'.*supported: gpt2, llama, mistral, qwen2, qwen3\).*convert_hf_to_gguf"),
        ("llama", {"attention_bias": True}, "attention_bias: True in its config.json.*means False"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, "rope_type: linear"),
        ("gpt2", {"activation_function": "relu"}, "activation_function: relu.*means gelu_new"),
        ("mistral", {"sliding_window": 4}, "attends to 4 of its 64 positions"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4}, "use_sliding_window: True"),
    ],
)
def test_other_models_are_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        architecture_of(tiny_model(name, byte_level(), **changes))


def test_window_as_long_as_the_positions_is_none() -> None:
    assert architecture_of(tiny_model("mistral", byte_level(), sliding_window=64)) is ARCHITECTURES["mistral"]


def test_another_name_of_the_same_activation_is_accepted() -> None:
    same = tiny_model("gpt2", byte_level(), activation_function="gelu_pytorch_tanh")  # as builtin/tiny-gpt2
    assert architecture_of(same) is ARCHITECTURES["gpt2"]
