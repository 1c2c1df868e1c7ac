"""Supported architectures of transformers, by `model_type`.

Tests cover all architectures listed here (tests/reference/test_architectures.py, docs/architectures.md). Other
architectures are checked when their weights are loaded; see `examination`.
"""

from __future__ import annotations

import logging
from typing import Any

from rl4dialog.core.errors import ModelError

_logger = logging.getLogger(__name__)

# fmt: off
CACHED = frozenset({
    "apertus", "arcee", "bamba", "bart", "bigbird_pegasus", "biogpt", "blenderbot", "blenderbot-small", "bloom",
    "codegen", "cohere", "cohere2", "ctrl", "deepseek_v2", "deepseek_v3", "ernie4_5", "exaone4", "falcon",
    "falcon_h1", "falcon_mamba", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "glm4_moe", "gpt2", "gpt_bigcode",
    "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe", "granitemoehybrid", "helium", "jamba", "led",
    "lfm2", "llama", "longt5", "m2m_100", "mamba", "mamba2", "marian", "mbart", "mistral", "mixtral", "mpt", "mt5",
    "mvp", "nemotron", "olmo", "olmo2", "olmo3", "olmoe", "opt", "pegasus", "pegasus_x", "persimmon",
    "phi", "phi3", "phimoe", "plbart", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "seed_oss",
    "smollm3", "stablelm", "starcoder2", "switch_transformers", "t5", "t5gemma", "umt5", "xglm",
})
# fmt: on
"""Supported architectures that generate with a cache."""

# fmt: off
CONTINUED = frozenset({
    "apertus", "arcee", "biogpt", "codegen", "cohere", "ctrl", "deepseek_v2", "deepseek_v3", "ernie4_5", "gemma", "glm",
    "glm4", "glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "granite", "granitemoe", "helium", "llama",
    "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmoe", "opt", "persimmon", "phi", "phimoe", "qwen2",
    "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "stablelm", "xglm",
})
# fmt: on
"""Supported architectures whose cache of a prompt can be continued by the next turn of a conversation, unless their
config limits the attention to a window. Their attention ignores padding between columns of the cache."""

UNCACHED = frozenset({"openai-gpt", "recurrent_gemma", "rwkv", "xlstm", "zamba2"})
"""Supported architectures that read the whole row again for every generated token."""

HIDES_PAD_TOKENS = "t5gemma"
"""Without a mask, its decoder treats pad tokens in a reply as padding."""

SKIPS_PAD_TOKENS = "m2m_100"
"""Its decoder skips pad tokens in position numbers for ids, but not for embeddings."""

_N_GRAMS = "it predicts several tokens at once, so its logits are not a function of the last hidden state"
_LLAMA_4 = "the model below its language-model head cannot be called as transformers' base_model"
REFUSED = {
    "fsmt": "its decoder works only inside the whole model",
    "llama4": _LLAMA_4,
    "llama4_text": _LLAMA_4,
    "nllb-moe": "the tokens that its experts drop in supervised training depend on earlier batches",
    "prophetnet": _N_GRAMS,
    "xlm-prophetnet": _N_GRAMS,
    "xlnet": "it reads a text in both directions, so later tokens change the probability of earlier ones",
}
"""Unsupported architectures, with the reasons."""

_INSTEAD = {True: "T5, BART, Pegasus, Marian or M2M-100", False: "Llama, Mistral, Qwen, Gemma, OPT, Mixtral or Mamba"}


def is_listed(config: Any) -> bool:
    """Whether the tests cover a model's architecture, so that it need not be checked."""
    return config.model_type in CACHED | UNCACHED


def check_architecture(config: Any, model_name: str, reply_length: int) -> None:
    """Check that an architecture is supported, as far as its config shows.

    Args:
        config: The model's config.
        model_name: For the error message.
        reply_length: Maximum reply length in tokens.
    """
    reason = REFUSED.get(config.model_type)
    if reason is not None:
        raise refusal(config, model_name, reason)
    if getattr(config.get_text_config(), "num_hidden_layers", 1) < 1:
        raise ModelError(f"{model_name!r}: num_hidden_layers in its config.json must be at least 1")
    if config.model_type == "switch_transformers" and reply_length > config.expert_capacity:
        raise ModelError(
            f"{model_name!r}: an expert of Switch Transformers takes {config.expert_capacity} tokens of a reply "
            f"(expert_capacity), and drops the rest of a reply of {reply_length} tokens in training, but not in "
            f"generation; set env.args.max_episode_length to {config.expert_capacity} or less"
        )
    if getattr(config, "output_router_logits", False):
        _logger.warning(
            "%s: output_router_logits has no effect; the routers' auxiliary loss is not added to any loss", model_name
        )


def refusal(config: Any, model_name: str, reason: str) -> ModelError:
    """Build the error for an unsupported architecture."""
    kind = bool(getattr(config, "is_encoder_decoder", False))
    return ModelError(
        f"{model_name!r} has the architecture {config.model_type!r}, which cannot be trained: {reason}. Choose a "
        f"model of another architecture, such as {_INSTEAD[kind]}; docs/architectures.md lists those that are tested"
    )
