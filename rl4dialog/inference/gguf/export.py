"""Exports the language model of a run as a GGUF file, for llama.cpp and the programs that are built on it.

Each architecture has the settings that its GGUF files have no key for. A model with other settings would be read as
another function, so it is refused. Transformers reads the file back, and it is compared with the original model.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import (
    GGML_QUANT_SIZES,
    GGML_QUANT_VERSION,
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    GGUFWriter,
    LlamaFileType,
)
from rich.console import Console
from rich.text import Text
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from rl4dialog.core.errors import ConfigError, ModelError, RunFolderError
from rl4dialog.core.files import naming_errors, replaced
from rl4dialog.core.pretrained import load_model, load_pretrained, read_gguf
from rl4dialog.inference.gguf.vocabulary import add_vocabulary
from rl4dialog.inference.publishing import prompt_format
from rl4dialog.inference.saved_run import check_without_values, find_checkpoint, model_folder, read_text_config
from rl4dialog.policies.models import position_limit
from rl4dialog.runs.provenance import read_provenance
from rl4dialog.training.building.texts import return_prefix


@dataclass(frozen=True)
class Architecture:
    """One of transformers' architectures in llama.cpp's form."""

    gguf: MODEL_ARCH  # llama.cpp's architecture
    add_metadata: Callable[[GGUFWriter, Any], None]
    # The weight of a transformers name, in llama.cpp's layout.
    stored: Callable[[str, Tensor, Any], Tensor] = lambda name, weight, config: weight
    # Settings that all files of the architecture imply, by key of the config; all of a tuple are the same.
    only: Mapping[str, Any] = field(default_factory=dict)


def architecture_of(model: PreTrainedModel) -> Architecture:
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


TEXTS = (
    "Hello! How are you today?",
    "I'm fine, thank you. It was 15 to 3 in 2023, wasn't it?",
    "two  spaces, a\ttab and\n\nempty lines",
    "naïve café, Größe, 你好, привет 🙂",
)
# Mean KL divergence per token, in nats, above which a file is of another model. Rounding SmolLM2-135M from float32
# gives 4e-6 (f16), 9e-5 (bf16) and 2e-3 (q8_0).
_MAX_KL = {"f32": 1e-3, "f16": 1e-3, "bf16": 1e-2, "q8_0": 0.1}


def token_ids(tokenizer: Any) -> list[list[int]]:
    return [tokenizer(text)["input_ids"] for text in TEXTS]


@torch.no_grad()
def log_probs(model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Log-probabilities of the token after each token of texts, cut to the model's positions. Shapes (tokens, V)."""
    limit = position_limit(model.config)
    return [model(torch.tensor([ids[:limit]])).logits[0].float().log_softmax(dim=-1) for ids in texts]


def check_file(path: Path, texts: Sequence[Sequence[int]], expected: Sequence[Tensor], dtype: str) -> float:
    """Mean KL divergence per token, in nats, of the model in a file, whose tokens must be the same."""
    try:
        tokenizer, _, model = read_gguf(path)
    except ModelError:
        raise
    except Exception as error:  # as in core/gguf.py
        raise ModelError(f"transformers cannot read the exported file, so it was removed: {error}") from error
    for text, ids, read in zip(TEXTS, texts, token_ids(tokenizer), strict=True):
        if list(ids) != read:
            raise ModelError(
                f"the tokenizer of the exported file reads {text!r} as other tokens than the run's, so the file was "
                f"removed: {read} instead of {list(ids)}"
            )
    pairs = zip(expected, log_probs(model.eval(), texts), strict=True)
    kls = torch.cat([(old.exp() * (old - new)).sum(dim=-1) for old, new in pairs])
    kl, limit = max(float(kls.mean()), 0.0), _MAX_KL[dtype]
    if not kl <= limit:
        raise ModelError(
            f"the model of the exported file differs from the run's by {kl:.2g} nats per token (KL divergence), more "
            f"than {limit:g}, so the file was removed; try --dtype f32, and please report it if that differs too"
        )
    return kl


_FILE_TYPES = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
}
_OF_TORCH = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def dtype_of(weights_dtype: torch.dtype) -> str:
    """The number format that stores weights of this type exactly."""
    return _OF_TORCH.get(weights_dtype, "f32")


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside a file. It gets the file's name if the block succeeds, and is removed otherwise."""
    with naming_errors(path, "; free up space or choose another --output"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path, f".tmp{path.suffix}") as temporary:
            yield temporary


def write_weights(writer: GGUFWriter, path: Path, weights: Iterable[tuple[str, Tensor]], dtype: str) -> None:
    writer.add_file_type(_FILE_TYPES[dtype])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    kinds = []
    n_bytes = 0
    weights = list(weights)
    for name, weight in weights:
        kind = _kind(name, weight, dtype)
        shape = gguf.quant_shape_to_byte_shape(weight.shape, kind)
        writer.add_tensor_info(name, shape, np.dtype(np.uint8), math.prod(shape), raw_dtype=kind)
        kinds.append(kind)
        n_bytes += math.prod(shape)
    free = shutil.disk_usage(path.parent).free
    if n_bytes > free:
        raise OSError(None, f"it needs {n_bytes / 2**20:,.0f} MiB, and the disk has {free / 2**20:,.0f} MiB left")
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for (_, weight), kind in zip(weights, kinds, strict=True):
            writer.write_tensor_data(gguf.quants.quantize(weight.float().contiguous().numpy(), kind))
    finally:
        writer.close()


def _kind(name: str, weight: Tensor, dtype: str) -> GGMLQuantizationType:
    """Number format of a weight. llama.cpp computes with norms, biases and positions in float32 only."""
    if weight.ndim < 2 or name == "position_embd.weight":
        return GGMLQuantizationType.F32
    kind = GGMLQuantizationType[dtype.upper()]
    block, _ = GGML_QUANT_SIZES[kind]
    return kind if weight.shape[-1] % block == 0 else GGMLQuantizationType.F16


_HINT = "Export a complete run, or one of its checkpoints (--checkpoint)."


def export_gguf(
    run: Path,
    output: Path,
    dtype: str | None = None,
    checkpoint: str | None = None,
    prior_only: bool = False,
    overwrite: bool = False,
    trust: bool = False,
) -> None:
    """Write a run's language model, tokenizer and chat template to a GGUF file, and check the file.

    No code that the run's config names is run without ``trust``, which allows a custom policy's class. By default,
    weights have the number format of the saved model. ``prior_only`` leaves out values, which GGUF files cannot have.
    """
    run, output = run.expanduser(), output.expanduser()
    if output.suffix != ".gguf":
        raise ConfigError(f"--output must end with .gguf, unlike {output}")
    if output.is_dir():
        raise RunFolderError(f"{output} is a folder; choose another --output")
    if output.exists() and not overwrite:
        raise RunFolderError(f"{output} exists already; choose another --output, or pass --overwrite")
    config = read_text_config(run, trust)
    if config.is_encoder_decoder:
        raise ConfigError(
            f"the model of {run} is an encoder-decoder, which export does not support; decoder-only models have a "
            f"GGUF form. Its model/ is a folder that transformers loads"
        )
    check_without_values(config, run, prior_only, "which a GGUF file cannot contain", "export")
    folder = model_folder(run, None if checkpoint is None else find_checkpoint(run, checkpoint))
    model = load_model(AutoModelForCausalLM, str(folder), "language model", _HINT, with_values=True, dtype="auto")
    tokenizer = load_pretrained(AutoTokenizer, str(folder), "tokenizer", _HINT)
    provenance = read_provenance(run)
    architecture, dtype = architecture_of(model), dtype or dtype_of(model.dtype)
    writer = GGUFWriter(None, MODEL_ARCH_NAMES[architecture.gguf])
    writer.add_name(run.resolve().name)
    architecture.add_metadata(writer, model.config)
    n_rows = model.get_input_embeddings().num_embeddings
    writer.add_vocab_size(n_rows)
    notes = add_vocabulary(writer, tokenizer, n_rows, provenance.get("turn_marker"))
    texts = token_ids(tokenizer)
    with replaced_file(output) as temporary:
        write_weights(writer, temporary, stored_weights(model, architecture), dtype)
        expected, n_weights = log_probs(model.float().eval(), texts), model.num_parameters()
        del model  # the file's model takes as much memory again
        kl = check_file(temporary, texts, expected, dtype)
    size = output.stat().st_size / 2**20
    if (prefix := return_prefix(config)) is not None:
        notes.append(f"Prompts begin with the return to achieve, such as {prefix.text(prefix.target)!r}.")
    lines = (
        f"Written: {output} ({writer.arch}, {n_weights:,} weights, {dtype}, {size:,.1f} MiB)",
        f"Checked: transformers reads the same tokens from it, and the same model up to {kl:.1g} nats per token",
        *notes,
        prompt_format(config, provenance),
    )
    for line in lines:
        Console().print(Text(line), soft_wrap=True)
