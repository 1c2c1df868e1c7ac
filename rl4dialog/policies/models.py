"""Loads pretrained language models, and builds the small built-in ones with random weights."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.activations import NewGELUActivation

from rl4dialog.core.errors import ModelError, nearest_hint
from rl4dialog.core.pretrained import PRETRAINED, check_not_guided, has_random_weights, load_model, load_pretrained
from rl4dialog.core.yaml_loader import packaged_yaml

_logger = logging.getLogger(__name__)

_TABLE = packaged_yaml(Path(__file__).with_suffix(".yaml"))
CACHED, CONTINUED, UNCACHED = (frozenset(_TABLE[kind].split()) for kind in ("cached", "continued", "uncached"))
REFUSED: dict[str, str] = _TABLE["refused"]
UNCAPTURED: dict[str, str] = _TABLE["uncaptured"]
BUILTIN_MODELS: dict[str, dict[str, Any]] = _TABLE["builtin"]

HIDES_PAD_TOKENS = "t5gemma"  # without a mask, its decoder treats pad tokens in a reply as padding
SKIPS_PAD_TOKENS = "m2m_100"  # its decoder skips pad tokens in position numbers for ids, but not for embeddings
_INSTEAD = {True: "T5, BART, Pegasus, Marian or M2M-100", False: "Llama, Mistral, Qwen, Gemma, OPT, Mixtral or Mamba"}


def is_listed(config: Any) -> bool:
    """Whether the tests cover a model's architecture, so that it need not be checked."""
    return config.model_type in CACHED | UNCACHED


def check_architecture(config: Any, model_name: str, reply_length: int) -> None:
    """Check that an architecture is supported, as far as its config shows."""
    reason = REFUSED.get(config.model_type)
    if reason is not None:
        raise refusal(config, model_name, reason)
    if getattr(config.get_text_config(), "num_hidden_layers", 1) < 1:
        raise ModelError(f"{model_name!r}: num_hidden_layers in its config.json must be at least 1")
    if config.model_type == "switch_transformers" and reply_length > config.expert_capacity:
        n = config.expert_capacity
        takes = f"an expert of Switch Transformers takes {n} tokens of a reply in training, and drops the rest"
        raise ModelError(f"{model_name!r}: {takes}; set env.args.max_episode_length to {n} or less")
    if getattr(config, "output_router_logits", False):
        message = "%s: output_router_logits has no effect; the routers' auxiliary loss is not added to any loss"
        _logger.warning(message, model_name)


def to_bfloat16(model: PreTrainedModel) -> None:
    """Round what a checkpoint holds to bfloat16, but no computed buffers: rotary positions need exact frequencies."""
    for weights in model.state_dict(keep_vars=True).values():
        if weights.is_floating_point():
            weights.data = weights.data.bfloat16()


def refusal(config: Any, model_name: str, reason: str) -> ModelError:
    """Build the error for an unsupported architecture."""
    kind = bool(getattr(config, "is_encoder_decoder", False))
    return ModelError(
        f"{model_name!r} has the architecture {config.model_type!r}, which cannot be trained: {reason}. Choose a "
        f"model of another architecture, such as {_INSTEAD[kind]}; docs/architectures.md lists those that are tested"
    )


def load_language_model(
    model_name: str,
    tokenizer: PreTrainedTokenizerBase,
    prompt_length: int,
    reply_length: int,
    auto_class: Any,
    seed: int = 0,
    with_values: bool = False,
) -> PreTrainedModel:
    """Load a language model, or build a tiny one.

    ``model_name`` is a folder, a ``.gguf`` file, a hub id, or a key of `rl4dialog.core.pretrained.PRETRAINED` or
    :data:`BUILTIN_MODELS`, whose vocabulary and special tokens are the tokenizer's, and whose initial weights depend on
    the ``seed``. The model must have positions for the longest prompt; a decoder-only one for prompt and reply
    together. ``with_values``: whether the caller also loads the values that guide the model, if there are any beside
    it; the name of such a folder may end with `rl4dialog.core.pretrained.PRIOR_ONLY`.
    """
    if has_random_weights(model_name):
        model = _build_tiny(model_name, tokenizer, prompt_length + reply_length, seed)
        _check_kind(model.config, model_name, auto_class)
        return model
    _config_of(model_name, auto_class, reply_length)
    hint = _where_models_are()
    model = load_model(auto_class, model_name, "language model", hint, with_values=with_values, dtype=torch.float32)
    check_fits(model, tokenizer, prompt_length, reply_length, model_name)
    return model


def _config_of(model_name: str, auto_class: Any, reply_length: int) -> Any:
    config = load_pretrained(AutoConfig, model_name, "language model", _where_models_are())
    _check_kind(config, model_name, auto_class)
    check_architecture(config, model_name, reply_length)
    return config


def language_model_without_weights(
    model_name: str, tokenizer: PreTrainedTokenizerBase, prompt_length: int, reply_length: int, auto_class: Any
) -> PreTrainedModel:
    """Build the architecture of :func:`load_language_model`. Call it under fake tensors or on ``meta``."""
    if has_random_weights(model_name):
        return load_language_model(model_name, tokenizer, prompt_length, reply_length, auto_class)
    check_not_guided(model_name, "language model")
    with torch.device("cpu"):  # not on meta: a GGUF file may be converted now, with its weights
        config = _config_of(model_name, auto_class, reply_length)
    return auto_class.from_config(config, dtype=torch.float32)  # as when loading


def check_fits(model: PreTrainedModel, tokenizer: Any, prompt_length: int, reply_length: int, model_name: str) -> None:
    """Check that a model has enough positions for prompt and reply, and an embedding for every token."""
    limit = position_limit(model.config)
    needs = {"max_prompt_length + max_episode_length": prompt_length + reply_length}
    if model.config.is_encoder_decoder:
        needs = {"max_prompt_length": prompt_length, "max_episode_length": reply_length}
    for name, n_positions in needs.items():
        if limit is not None and n_positions > limit:
            what = f"{n_positions} tokens, but {model_name!r} has only {limit} positions"
            raise ModelError(f"env.args.{name} is {what}; reduce it")
    n_embeddings, n_tokens = embedding_rows(model), 1 + max(_token_ids(tokenizer), default=-1)
    if n_tokens > n_embeddings:
        what = f"{n_tokens} tokens, but {model_name!r} has only {n_embeddings} embeddings"
        raise ModelError(f"the tokenizer has {what}; tokenizer.model_name and the policy's model_name do not match")


def position_limit(config: Any) -> int | None:
    """Maximum number of tokens of a model; ``None`` for relative positions without a limit (such as T5's)."""
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    return int(limit) if limit is not None else None


def embedding_rows(model: PreTrainedModel) -> int:
    """Vocabulary size of the model's embedding, which may exceed the tokenizer's."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight.shape[0]


def ids_without_token(tokenizer: Any, n_rows: int) -> list[int]:
    """Rows of a model's embedding that stand for no token, such as those that pad it to a multiple of 64."""
    return sorted(set(range(n_rows)) - _token_ids(tokenizer))


def _token_ids(tokenizer: Any) -> set[int]:
    # Two tokens of a tokenizer in Python may have the same text; those before the added ones have no gaps.
    first = 0 if tokenizer.is_fast else tokenizer.vocab_size
    return {*range(first), *tokenizer.get_vocab().values(), *tokenizer.added_tokens_decoder}


def named_model_positions(model_name: str) -> int | None:
    """:func:`position_limit` of a model that is not loaded; ``None`` for built-in ones, which are built to fit."""
    if has_random_weights(model_name):
        return None
    return position_limit(load_pretrained(AutoConfig, model_name, "language model", _where_models_are()))


def decoder_start_id(model: PreTrainedModel) -> int:
    """Start token of an encoder-decoder model's replies."""
    for config in (model.config, model.generation_config):
        start_id = getattr(config, "decoder_start_token_id", None)
        if start_id is not None:
            return int(start_id)
    raise ModelError(f"the config of {model.config.model_type!r} has no decoder_start_token_id")


def _where_models_are() -> str:
    return (
        f"Use a folder with a language model, a .gguf file, a hub id (requires network access), or one of "
        f"{', '.join([*PRETRAINED, *BUILTIN_MODELS])}."
    )


def _check_kind(config: Any, model_name: str, auto_class: Any) -> None:
    if bool(config.is_encoder_decoder) != (auto_class is AutoModelForSeq2SeqLM):
        found, wanted, policy = ("a decoder-only", "an encoder-decoder", "causal")
        if config.is_encoder_decoder:
            found, wanted, policy = wanted, found, "seq2seq"
        problem = f"{model_name!r} is {found} model, but the policy needs {wanted} one"
        raise ModelError(f"{problem}; choose another model_name, or the {policy} policy")


def _build_tiny(model_name: str, tokenizer: PreTrainedTokenizerBase, n_positions: int, seed: int) -> PreTrainedModel:
    if model_name not in BUILTIN_MODELS:
        known = [*PRETRAINED, *BUILTIN_MODELS]
        hint = nearest_hint(model_name, known)
        raise ModelError(f"unknown built-in model {model_name!r}{hint} (known: {', '.join(known)})")
    kind, bos = model_name.rpartition("-")[2], {"bos_token_id": tokenizer.bos_token_id}
    limited = {"max_position_embeddings": n_positions, **bos}
    config_class, model_class, own, start = {
        "t5": (T5Config, T5ForConditionalGeneration, {"dropout_rate": 0.0}, tokenizer.pad_token_id),
        "bart": (
            *(BartConfig, BartForConditionalGeneration),
            *({**limited, "forced_eos_token_id": None, "dropout": 0.0}, tokenizer.eos_token_id),
        ),
        "llama": (LlamaConfig, LlamaForCausalLM, limited, None),
        "gpt2": (GPT2Config, GPT2LMHeadModel, {"n_positions": n_positions, **bos, **_TABLE["gpt2"]}, None),
    }[kind]
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config: Any = config_class(vocab_size=len(tokenizer), **ids, **own, **BUILTIN_MODELS[model_name])
    if start is not None:
        config.decoder_start_token_id = start
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return model_class(config)


def quiet(model: nn.Module) -> None:
    """Spare a GPU a check of padding, and let GPT-2's GELU be one kernel there (the same up to 2e-7)."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.warn_if_padding_and_no_attention_mask = _no_warning  # type: ignore[method-assign]
        if isinstance(module, NewGELUActivation):
            module.forward = _fused_gelu  # type: ignore[method-assign, assignment]


def _no_warning(*args: Any) -> None:
    """Padding is on the right, where it affects no token, or it is in the mask."""


def _fused_gelu(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(x, approximate="tanh") if x.device.type == "cuda" else _NEW_GELU(x)


_NEW_GELU = NewGELUActivation()


def without_weights(model: Any) -> Any:
    """A copy of a model whose parameters hold no numbers (on torch's meta device)."""
    on_meta = {id(each): nn.Parameter(each.detach().to("meta"), each.requires_grad) for each in model.parameters()}
    copied = copy.deepcopy(model, on_meta)
    for module in copied.modules():
        module.__dict__.pop("forward", None)  # of a recomputed layer; it would call the original layer
    return copied


def fill(model: PreTrainedModel, weights: Mapping[str, torch.Tensor]) -> None:
    """Give a model of :func:`without_weights` its weights, as gathered: without what others are tied to."""
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
