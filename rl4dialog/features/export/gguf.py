"""Exports the language model of a run as a GGUF file, for llama.cpp and the programs that are built on it.

llama.cpp has programs of its own that split texts, so a file only names one: byte-level BPE with one of its rules of
splitting texts before merging, or SentencePiece's BPE, which merges by scores of tokens. Each architecture has the
settings that its GGUF files have no key for. Tokenizers and models that would be read as others are refused.
Transformers reads the file back, and it is compared with the original model.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    TokenType,
)
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from rl4dialog.core.errors import ConfigError, ModelError, RunFolderError
from rl4dialog.core.files import naming_errors, replaced
from rl4dialog.core.pretrained import load_model, load_pretrained, read_gguf
from rl4dialog.features.export.publishing import check_without_values, prompt_format, read_text_config
from rl4dialog.inference.loading import find_checkpoint, model_folder
from rl4dialog.policies.models import position_limit
from rl4dialog.runs.provenance import read_provenance

_SPACE = "▁"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Steps before merging, as in tokenizer.json, and whether whole pieces are looked up first; by llama.cpp's name.
_SPLITS = {
    "gpt-2": (["GPT-2"], False),
    "smollm": (["Digits", "GPT-2"], False),
    "llama-bpe": ([_CONTRACTIONS + r"\p{N}{1,3}" + _REST, "bytes"], True),
    "qwen2": ([_CONTRACTIONS + r"\p{N}" + _REST, "bytes"], False),
}
_FORMS = (
    f"a GGUF file can have byte-level BPE that splits texts as {', '.join(_SPLITS)} do, or SentencePiece's BPE with "
    f"tokens for bytes"
)


def add_vocabulary(writer: GGUFWriter, tokenizer: Any, n_rows: int, end_of_turn: str | None) -> list[str]:
    """Add a tokenizer and its chat template; returns what users of the file have to mind.

    The embedding may have more rows than tokens. If the text that ends a reply is a token, llama.cpp ends replies
    there.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"the tokenizer {type(tokenizer).__name__} has no tokenizer.json; {_FORMS}")
    if len(tokenizer) > n_rows:
        raise ModelError(f"the tokenizer has {len(tokenizer)} tokens, but the model only {n_rows} embeddings")
    if tokenizer.eos_token_id is None:
        raise ModelError("the tokenizer has no end-of-sequence token, which llama.cpp needs to end a text")
    settings = json.loads(backend.to_str())
    is_sentencepiece = bool(settings["model"].get("byte_fallback"))
    notes = (_add_sentencepiece if is_sentencepiece else _add_byte_level)(writer, tokenizer, settings, n_rows)
    marker = None if end_of_turn is None else tokenizer.get_vocab().get(end_of_turn)
    if end_of_turn is not None and marker is None:
        notes.append(f"Replies end with {end_of_turn!r}, which is no token here: set it as a stop text.")
    _add_special(writer, tokenizer, marker)
    return notes


def _add_special(writer: GGUFWriter, tokenizer: Any, end_of_turn_id: int | None) -> None:
    """Add special tokens, which of them the tokenizer puts around texts, and the chat template."""
    for id, add in (
        (tokenizer.bos_token_id, writer.add_bos_token_id),
        (tokenizer.eos_token_id, writer.add_eos_token_id),
        (tokenizer.unk_token_id, writer.add_unk_token_id),
        (tokenizer.pad_token_id, writer.add_pad_token_id),
        (end_of_turn_id, writer.add_eot_token_id),
    ):
        if id is not None:
            add(id)
    ids, plain = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    n_before = next(start for start in range(len(ids) + 1) if ids[start : start + len(plain)] == plain)
    writer.add_add_bos_token(n_before > 0)
    writer.add_add_eos_token(len(ids) > n_before + len(plain))
    templates = tokenizer.chat_template
    if isinstance(templates, Mapping):
        templates = [{"name": name, "template": template} for name, template in templates.items()]
    if templates:
        writer.add_chat_template(templates)


def _add_byte_level(writer: GGUFWriter, tokenizer: Any, settings: Mapping[str, Any], n_rows: int) -> list[str]:
    steps = _steps(settings["pre_tokenizer"])
    whole_first = bool(settings["model"].get("ignore_merges"))
    name = next((name for name, form in _SPLITS.items() if form == (steps, whole_first)), None)
    is_plain = settings["model"]["type"] == "BPE" and (settings["normalizer"] or {"type": "NFC"})["type"] == "NFC"
    merges = settings["model"].get("merges")
    if name is None or not is_plain or not merges:
        raise ModelError(f"the tokenizer has no GGUF form: {_FORMS}. {_kind_of(settings)}")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    tokens, types = _tokens_and_types(tokenizer, n_rows)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    return _notes_of_added(tokenizer)


def _add_sentencepiece(writer: GGUFWriter, tokenizer: Any, settings: Mapping[str, Any], n_rows: int) -> list[str]:
    starts, notes = _prepends_space(settings), _notes_of_added(tokenizer)
    merges = [tuple(pair) for pair in settings["model"].get("merges", [])]
    scores: dict[str, float] = {}
    for rank, (left, right) in enumerate(merges):
        scores.setdefault(left + right, -float(rank))
    if starts is None or settings["model"]["type"] != "BPE" or not _merge_by_scores(merges, scores, tokenizer):
        raise ModelError(f"the tokenizer has no GGUF form: {_FORMS}. {_kind_of(settings)}")
    if (settings["pre_tokenizer"] or {}).get("prepend_scheme") == "first":
        notes.append("llama.cpp reads a space after each special token of a prompt, which the tokenizer does not.")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    tokens, types = _tokens_and_types(tokenizer, n_rows)
    for id, kind in enumerate(types):
        if kind == TokenType.USER_DEFINED:
            tokens[id] = tokens[id].replace(_SPACE, " ")
        elif _is_byte(tokens[id]):
            types[id] = TokenType.BYTE
        elif id == tokenizer.unk_token_id:
            types[id] = TokenType.UNKNOWN
    writer.add_token_list(tokens)
    writer.add_token_scores([scores.get(token, 0.0) for token in tokens])
    writer.add_token_types(types)
    writer.add_add_space_prefix(starts)
    return notes


def _tokens_and_types(tokenizer: Any, n_rows: int) -> tuple[list[str], list[int]]:
    """All tokens by id, and their types; rows of the embedding without a token get a name that no text has."""
    tokens, types = [f"[PAD{id}]" for id in range(n_rows)], [int(TokenType.UNUSED)] * n_rows
    for token, id in tokenizer.get_vocab().items():
        tokens[id], types[id] = token, int(TokenType.NORMAL)
    for id, added in tokenizer.added_tokens_decoder.items():
        tokens[id] = added.content
        types[id] = int(TokenType.CONTROL if added.special else TokenType.USER_DEFINED)
    return tokens, types


def _notes_of_added(tokenizer: Any) -> list[str]:
    """Tokens that take whitespace around them along, which llama.cpp's do not."""
    greedy = [added.content for added in tokenizer.added_tokens_decoder.values() if added.lstrip or added.rstrip]
    return [
        f"Write no space beside {token!r}: here the token includes it, in llama.cpp it does not." for token in greedy
    ]


def _steps(pre_tokenizer: Mapping[str, Any] | None) -> list[str]:
    """The steps before merging in short: ``GPT-2``, ``Digits``, ``bytes``, or the regular expression of a split."""
    if pre_tokenizer is None:
        return []
    kind = pre_tokenizer["type"]
    if kind == "Sequence":
        return [step for each in pre_tokenizer["pretokenizers"] for step in _steps(each)]
    if kind == "ByteLevel" and not pre_tokenizer["add_prefix_space"]:
        return ["GPT-2" if pre_tokenizer.get("use_regex", True) else "bytes"]
    if kind == "Digits" and pre_tokenizer["individual_digits"]:
        return ["Digits"]
    if kind == "Split" and pre_tokenizer["behavior"] == "Isolated" and not pre_tokenizer["invert"]:
        return [pre_tokenizer["pattern"].get("Regex", "a text")]
    return [f"another {kind}"]


def _prepends_space(settings: Mapping[str, Any]) -> bool | None:
    """Whether a SentencePiece tokenizer reads texts as if they began with a space; ``None`` if it is another one."""
    normalizer, split = settings["normalizer"], settings["pre_tokenizer"]
    if normalizer is None and split is not None and split["type"] == "Metaspace" and not split.get("split", True):
        return bool(split["prepend_scheme"] != "never")
    if normalizer is None or split is not None:
        return None
    steps = normalizer.get("normalizers", [normalizer])
    found = [(step["type"], step.get("prepend") or step.get("content")) for step in steps]
    if found == [("Prepend", _SPACE), ("Replace", _SPACE)]:
        return True
    return False if found == [("Replace", _SPACE)] else None


def _merge_by_scores(merges: list[tuple[str, ...]], scores: Mapping[str, float], tokenizer: Any) -> bool:
    """Whether merging the pair with the best score of its result is the same as merging by the list."""
    ranks = [scores[left + right] for left, right in merges]
    if ranks != sorted(ranks, reverse=True):
        return False
    # llama.cpp merges any two tokens whose texts together are a token.
    added = {added.content for added in tokenizer.added_tokens_decoder.values()}
    listed, vocabulary = set(merges), tokenizer.get_vocab()
    return all(
        (token[:cut], token[cut:]) in listed
        for token in vocabulary
        if token not in added and not _is_byte(token)
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    )


def _is_byte(token: str) -> bool:
    """Whether a token is a byte, such as ``<0x0A>``."""
    return token.startswith("<0x") and len(token) == len("<0x0A>")


def _kind_of(settings: Mapping[str, Any]) -> str:
    model = settings["model"]["type"]
    if model == "BPE" and not settings["model"].get("merges"):
        return "This one has a token per word or character (builtin/words, builtin/characters)"
    steps = ", ".join(_steps(settings["pre_tokenizer"])) or "nothing"
    return f"This one is {model} and splits texts by: {steps}"


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

_CONV1D = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # transformers stores them transposed

ARCHITECTURES = {
    "gpt2": Architecture(
        MODEL_ARCH.GPT2,
        _gpt2_metadata,
        lambda name, weight, config: weight.T if name.endswith(_CONV1D) else weight,
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
    except Exception as error:  # of damaged files, there are many
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


def begun_file(model: Any, tokenizer: Any, name: str, end_of_turn: str | None = None) -> tuple[GGUFWriter, list[str]]:
    """A writer that has all of a file but the weights, and notes for the user."""
    architecture, n_rows = architecture_of(model), model.get_input_embeddings().num_embeddings
    writer = GGUFWriter(None, MODEL_ARCH_NAMES[architecture.gguf])
    writer.add_name(name)
    architecture.add_metadata(writer, model.config)
    writer.add_vocab_size(n_rows)
    return writer, add_vocabulary(writer, tokenizer, n_rows, end_of_turn)


def write_weights(writer: GGUFWriter, path: Path, weights: Iterable[tuple[str, Tensor]], dtype: str) -> None:
    """Write weights after what a writer already has; an `OSError` if they do not fit on the disk."""
    writer.add_file_type(LlamaFileType["ALL_F32" if dtype == "f32" else f"MOSTLY_{dtype.upper()}"])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    n_bytes, of_kind = 0, []
    for name, weight in weights:
        of_kind.append((weight, kind := _kind(name, weight, dtype)))
        shape = gguf.quant_shape_to_byte_shape(weight.shape, kind)
        writer.add_tensor_info(name, shape, np.dtype(np.uint8), math.prod(shape), raw_dtype=kind)
        n_bytes += math.prod(shape)
    free = shutil.disk_usage(path.parent).free
    if n_bytes > free:
        raise OSError(None, f"it needs {n_bytes / 2**20:,.0f} MiB, and the disk has {free / 2**20:,.0f} MiB left")
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for weight, kind in of_kind:
            writer.write_tensor_data(gguf.quants.quantize(weight.float().contiguous().numpy(), kind))
    finally:
        writer.close()


def _kind(name: str, weight: Tensor, dtype: str) -> GGMLQuantizationType:
    """Number format of a weight. llama.cpp computes with norms, biases and positions in float32 only."""
    if weight.ndim < 2 or name == "position_embd.weight":
        return GGMLQuantizationType.F32
    kind = GGMLQuantizationType[dtype.upper()]
    return kind if weight.shape[-1] % GGML_QUANT_SIZES[kind][0] == 0 else GGMLQuantizationType.F16


_HINT = "Export a complete run, or one of its checkpoints (--checkpoint)."


def export_gguf(
    run: Path, output: Path, dtype: str | None, checkpoint: str | None, prior_only: bool, overwrite: bool, trust: bool
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
    dtype = dtype or {torch.float16: "f16", torch.bfloat16: "bf16"}.get(model.dtype, "f32")
    writer, notes = begun_file(model, tokenizer, run.resolve().name, provenance.get("turn_marker"))
    texts = token_ids(tokenizer)
    with naming_errors(output, "; free up space or choose another --output"):
        output.parent.mkdir(parents=True, exist_ok=True)
        with replaced(output, ".tmp.gguf") as temporary:
            write_weights(writer, temporary, stored_weights(model, architecture_of(model)), dtype)
            expected, n_weights = log_probs(model.float().eval(), texts), model.num_parameters()
            del model  # the file's model takes as much memory again
            kl = check_file(temporary, texts, expected, dtype)
    size = output.stat().st_size / 2**20
    print(f"Written: {output} ({writer.arch}, {n_weights:,} weights, {dtype}, {size:,.1f} MiB)")
    print(f"Checked: transformers reads the same tokens from it, and the same model up to {kl:.1g} nats per token")
    if config.prompt_prefix is not None:
        notes.append(config.prompt_prefix.note)
    print(*notes, prompt_format(config, provenance), sep="\n")
