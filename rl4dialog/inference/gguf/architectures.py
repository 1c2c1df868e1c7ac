"""Language models as llama.cpp stores them: names and layout of the weights, and the metadata that describes them.

Each architecture has the settings that its GGUF files have no key for. A model with other settings would be read as
another function, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gguf
from gguf import MODEL_ARCH, GGUFWriter
from torch import Tensor
from transformers import PreTrainedModel

from rl4dialog.core.errors import ModelError


@dataclass(frozen=True)
class Architecture:
    """One of transformers' architectures in llama.cpp's form.

    Attributes:
        gguf: llama.cpp's architecture.
        add_metadata: Adds the sizes of a model with this config.
        stored: The weight of a transformers name, in llama.cpp's layout.
        only: Settings that all files of the architecture imply, by key of the config; all of a tuple are the same.
    """

    gguf: MODEL_ARCH
    add_metadata: Callable[[GGUFWriter, Any], None]
    stored: Callable[[str, Tensor, Any], Tensor] = lambda name, weight, config: weight
    only: Mapping[str, Any] = field(default_factory=dict)


def architecture_of(model: PreTrainedModel) -> Architecture:
    """Return the form of a model."""
    config = model.config
    found = ARCHITECTURES.get(config.model_type)
    if found is None:
        raise ModelError(
            f"the model is of the architecture {config.model_type!r}, which has no GGUF export here (supported: "
            f"{', '.join(ARCHITECTURES)}); llama.cpp's convert_hf_to_gguf.py converts many others from the model folder"
        )
    settings = {**config.to_dict(), **(getattr(config, "rope_parameters", None) or {})}
    for key, value in found.only.items():
        same = value if isinstance(value, tuple) else (value,)
        if settings.get(key, same[0]) not in same:
            raise ModelError(
                f"the model has {key}: {settings[key]} in its config.json, but a GGUF file of the architecture "
                f"{config.model_type!r} means {same[0]}; llama.cpp's convert_hf_to_gguf.py may support it"
            )
    window, n_positions = settings.get("sliding_window"), settings.get("max_position_embeddings")
    if config.model_type == "mistral" and window is not None and window < n_positions:
        raise ModelError(
            f"the model attends to {window} of its {n_positions} positions (sliding_window in its config.json), which "
            f"llama.cpp does not do for this architecture"
        )
    return found


def stored_weights(model: PreTrainedModel, architecture: Architecture) -> Iterator[tuple[str, Tensor]]:
    """Yield name and value of each weight of a GGUF file."""
    config, tied = model.config, model.get_output_embeddings().weight is model.get_input_embeddings().weight
    names = gguf.get_tensor_name_map(architecture.gguf, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue  # llama.cpp takes the embedding
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if stored_name is None:
            raise ModelError(f"the model has a weight without a name in GGUF files: {name}")
        yield stored_name, architecture.stored(name, weight.detach(), config)


def _gpt2_metadata(writer: GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(config.n_inner or 4 * config.n_embd)
    writer.add_block_count(config.n_layer)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


def _gpt2_weight(name: str, weight: Tensor, config: Any) -> Tensor:
    """Transpose the weights of transformers' Conv1D."""
    del config
    return weight.T if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else weight


def _llama_metadata(writer: GGUFWriter, config: Any) -> None:
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)


def _llama_weight(name: str, weight: Tensor, config: Any) -> Tensor:
    """Interleave the two halves of each head's rotary dimensions in the rows of queries and keys."""
    n_heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if n_heads is None:
        return weight
    halves = weight.reshape(n_heads, 2, weight.shape[0] // n_heads // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


_ROTARY = {"hidden_act": "silu", "rope_type": "default", "partial_rotary_factor": 1.0}
_NO_BIAS = {"attention_bias": False, "mlp_bias": False}
_QWEN = {**_ROTARY, "use_sliding_window": False}

ARCHITECTURES = {
    "gpt2": Architecture(
        MODEL_ARCH.GPT2,
        _gpt2_metadata,
        _gpt2_weight,
        {
            "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
    ),
    "llama": Architecture(MODEL_ARCH.LLAMA, _llama_metadata, _llama_weight, {**_ROTARY, **_NO_BIAS}),
    # llama.cpp has no architecture of this name: without a window, it is Llama's.
    "mistral": Architecture(MODEL_ARCH.LLAMA, _llama_metadata, _llama_weight, _ROTARY),
    "qwen2": Architecture(MODEL_ARCH.QWEN2, _llama_metadata, only=_QWEN),
    "qwen3": Architecture(MODEL_ARCH.QWEN3, _llama_metadata, only={**_QWEN, "attention_bias": False}),
}
"""Architectures with an export, by transformers' `model_type`."""
