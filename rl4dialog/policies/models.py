"""Loading language models from a path or a hub, and building the small ones that need neither."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, PreTrainedModel, PreTrainedTokenizerBase

from rl4dialog.core.errors import ModelError, nearest_hint
from rl4dialog.core.hub import load_pretrained

BUILTIN_MODELS: dict[str, dict[str, Any]] = {
    "builtin/tiny-gpt2": {"n_layer": 4, "n_embd": 128, "n_head": 4},
    "builtin/small-gpt2": {"n_layer": 6, "n_embd": 256, "n_head": 8},
}
"""GPT-2 architectures with random weights, meant for a warm start."""

_BUILTIN_SETTINGS: dict[str, Any] = {
    # The same tanh approximation as GPT-2's "gelu_new", in one fused kernel: most of the difference on a CPU.
    "activation_function": "gelu_pytorch_tanh",
    # A few epochs of a warm start do not overfit a model this small, and dropout is off in reinforcement learning.
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}


def load_causal_lm(
    model_name: str, tokenizer: PreTrainedTokenizerBase, n_positions: int, seed: int = 0
) -> PreTrainedModel:
    """Load a decoder-only language model, or build a tiny one.

    Args:
        model_name: A folder, a hub id, or a key of :data:`BUILTIN_MODELS`.
        tokenizer: Decides a built-in model's vocabulary and special tokens.
        n_positions: Prompt and reply together, in tokens; the model must have as many positions.
        seed: Of a built-in model's initial weights.

    Raises:
        ModelError: If the model cannot be loaded, has too few positions, or too small a vocabulary.
    """
    if model_name.startswith("builtin/"):
        return _build_tiny_gpt2(model_name, tokenizer, n_positions, seed)
    model = load_pretrained(
        AutoModelForCausalLM,
        model_name,
        "language model",
        f"Give a folder that holds a causal language model, a hub id while there is a network, or one of "
        f"{', '.join(BUILTIN_MODELS)}.",
        dtype=torch.float32,
    )
    check_fits(model, tokenizer, n_positions, model_name)
    return model  # type: ignore[no-any-return]


def check_fits(model: PreTrainedModel, tokenizer: Any, n_positions: int, model_name: str) -> None:
    """Check that a model has room for prompt and reply, and an embedding for every token.

    Raises:
        ModelError: If it does not.
    """
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and n_positions > limit:
        raise ModelError(
            f"env.args.max_prompt_length + max_episode_length is {n_positions} tokens, but {model_name!r} has only "
            f"{limit} positions; shorten one of them"
        )
    n_embeddings = embedding_rows(model)
    if len(tokenizer) > n_embeddings:
        raise ModelError(
            f"the tokenizer has {len(tokenizer)} tokens, but {model_name!r} embeds only {n_embeddings}; "
            f"tokenizer.model_name and the policy's model_name do not belong together"
        )


def embedding_rows(model: PreTrainedModel) -> int:
    """Vocabulary size as the model has it, which may be more than the tokenizer's."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    return weight.shape[0]


def _build_tiny_gpt2(
    model_name: str, tokenizer: PreTrainedTokenizerBase, n_positions: int, seed: int
) -> PreTrainedModel:
    if model_name not in BUILTIN_MODELS:
        raise ModelError(
            f"unknown built-in model {model_name!r}{nearest_hint(model_name, BUILTIN_MODELS)} "
            f"(known: {', '.join(BUILTIN_MODELS)})"
        )
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=n_positions,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **_BUILTIN_SETTINGS,
        **BUILTIN_MODELS[model_name],
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config)
