"""Tiny models of many architectures, built from transformers' own config classes: no test downloads anything."""

import re

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

from rl4dialog.core.types import is_number

_STD = {"initializer_range": 0.2}
_GPT = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, **_STD}
_NEOX = {
    **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"max_position_embeddings": 64, **_STD},
}
_LLAMA = {**_NEOX, "num_key_value_heads": 2}
_HEADS = {**_LLAMA, "head_dim": 8}
_EXPERTS = {**_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}
_SMALL_EXPERTS = {**_HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_SHARED_EXPERT = {**_SMALL_EXPERTS, "shared_expert_intermediate_size": 24}
_DEEPSEEK = {
    **{**_NEOX, "num_key_value_heads": 4, "moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2},
    **{"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8},
    **{"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
}
# Windows that are shorter than the longest prompt.
_WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
_GEMMA = {**_HEADS, "query_pre_attn_scalar": 8, "sliding_window": 4}
_MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
_MAMBA_LAYERS = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1}
_SCALED = {"logits_scaling": 2.0}

_BART = {
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48},
    **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "init_std": 0.2, "decoder_start_token_id": 0},
    "max_position_embeddings": 64,
}
_T5 = {
    **{"d_model": 32, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 2, "initializer_factor": 1.0},
    "decoder_start_token_id": 1,
}
_GEMMA_SIDE = {**_GEMMA, "vocab_size": 25, "pad_token_id": 1, "bos_token_id": 0}
_PAD_STARTS = {**_GEMMA_SIDE, "bos_token_id": 1}
_PROPHETNET = {
    **{"hidden_size": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64},
    **{"num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 2},
    **{"num_decoder_attention_heads": 2, "decoder_start_token_id": 0},
}

CAUSAL = {
    "apertus": _LLAMA,
    "arcee": _LLAMA,
    "bamba": {**_LLAMA, **_MAMBA_LAYERS, "attn_layer_indices": [1]},
    "biogpt": _NEOX,
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 2, **_STD},
    "codegen": {**_GPT, "n_head": 4, "rotary_dim": 4},
    "cohere": {**_LLAMA, "logit_scale": 0.5},
    "cohere2": {**_LLAMA, **_WINDOW, "logit_scale": 0.5},
    "ctrl": {**_GPT, "dff": 48},
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "ernie4_5": _LLAMA,
    "exaone4": {**_HEADS, "sliding_window": 4},
    "falcon": {**_NEOX, "ffn_hidden_size": 48},
    "falcon_h1": {**_HEADS, **_MAMBA_LAYERS, "mamba_d_ssm": 64},
    "falcon_mamba": _MAMBA,
    "gemma": _HEADS,
    "gemma2": {**_GEMMA, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0},
    "gemma3_text": {**_GEMMA, **_WINDOW},
    "glm": _HEADS,
    "glm4": _HEADS,
    "glm4_moe": {**_HEADS, **_DEEPSEEK, "num_key_value_heads": 2, "n_group": 1},
    "gpt2": _GPT,
    "gpt_bigcode": _GPT,
    "gpt_neo": {
        **{"hidden_size": 32, "num_layers": 2, "num_heads": 2, "window_size": 4, "max_position_embeddings": 64, **_STD},
        "attention_types": [[["global", "local"], 1]],
    },
    "gpt_neox": _NEOX,
    "gpt_oss": {**_EXPERTS, **_WINDOW},
    "gptj": {**_GPT, "rotary_dim": 8},
    "granite": {**_LLAMA, **_SCALED, "embedding_multiplier": 2.0},
    "granitemoe": {**_EXPERTS, **_SCALED},
    "granitemoehybrid": {
        **{**_EXPERTS, **_MAMBA_LAYERS, **_SCALED, "shared_intermediate_size": 24},
        "layer_types": ["mamba", "attention"],
    },
    "helium": _HEADS,
    "jamba": {
        **{**_LLAMA, "num_experts": 4, "num_experts_per_tok": 2, "mamba_d_state": 8, "mamba_dt_rank": 4},
        **{"attn_layer_period": 2, "attn_layer_offset": 1},
    },
    "lfm2": {**_LLAMA, "layer_types": ["conv", "full_attention"]},
    "llama": _LLAMA,
    "mamba": _MAMBA,
    "mamba2": {**_MAMBA, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
    "mistral": {**_LLAMA, "sliding_window": 4},
    "mixtral": _EXPERTS,
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, **_STD},
    "nemotron": _LLAMA,
    "olmo": _LLAMA,
    "olmo2": _LLAMA,
    "olmo3": {**_LLAMA, "sliding_window": 4},
    "olmoe": {**_LLAMA, "num_experts": 4, "num_experts_per_tok": 2},
    "openai-gpt": _GPT,
    # As OPT-350m, whose embeddings are narrower than its layers.
    "opt": {**_NEOX, "word_embed_proj_dim": 16, "ffn_dim": 48, "init_std": 0.2, "do_layer_norm_before": False},
    "persimmon": _LLAMA,
    "phi": _LLAMA,
    "phi3": {**_LLAMA, "sliding_window": 4},
    "phimoe": {**_LLAMA, "num_local_experts": 4},
    "qwen2": {**_LLAMA, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen2_moe": _SHARED_EXPERT,
    "qwen3": _HEADS,
    "qwen3_moe": _SMALL_EXPERTS,
    "qwen3_next": {
        **{**_SHARED_EXPERT, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2},
        **{"linear_num_value_heads": 4, "layer_types": ["linear_attention", "full_attention"]},
    },
    "recurrent_gemma": {
        **{**_NEOX, "intermediate_size": 96, "num_hidden_layers": 3, "num_key_value_heads": 1, "lru_width": 32},
        "attention_window_size": 4,
    },
    "rwkv": {
        **{"hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32, "intermediate_size": 48},
        "context_length": 64,
    },
    "seed_oss": _HEADS,
    "smollm3": _LLAMA,
    "stablelm": _LLAMA,
    "starcoder2": {**_LLAMA, "sliding_window": 4},
    "xglm": {
        **{"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 2, "max_position_embeddings": 64},
        "init_std": 0.2,
    },
    "xlstm": {"hidden_size": 64, "num_hidden_layers": 2, "num_heads": 2, "qk_dim_factor": 1.0},
    "zamba2": {
        **{**_LLAMA, "num_hidden_layers": 4, "mamba_ngroups": 1, "n_mamba_heads": 4, "mamba_d_state": 8},
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
    },
}
"""Decoder-only ones that are trained, by `model_type`."""

SEQ2SEQ = {
    "bart": _BART,
    "bigbird_pegasus": {**_BART, "attention_type": "original_full"},
    "blenderbot": _BART,
    "blenderbot-small": _BART,
    "led": {
        **{name: value for name, value in _BART.items() if name != "max_position_embeddings"},
        **{"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64, "attention_window": [4, 4]},
    },
    "longt5": {**_T5, "local_radius": 7},
    "longt5/global": {**_T5, "local_radius": 7, "encoder_attention_type": "transient-global"},
    "m2m_100": _BART,
    "marian": _BART,
    "mbart": _BART,
    "mt5": {**_T5, "initializer_factor": 0.3},
    "mvp": _BART,
    "pegasus": _BART,
    "pegasus_x": {**_BART, "num_global_tokens": 4, "block_size": 8},
    "plbart": _BART,
    "switch_transformers": {
        **{**_T5, "num_experts": 4, "expert_capacity": 16},
        **{"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    },
    "t5": _T5,
    "t5gemma": {"encoder": _GEMMA_SIDE, "decoder": _GEMMA_SIDE, "decoder_start_token_id": 0},
    # The start token is the pad token, and T5Gemma makes masks of pad tokens.
    "t5gemma/pad": {"encoder": _PAD_STARTS, "decoder": _PAD_STARTS, "decoder_start_token_id": 1},
    "umt5": _T5,
}
"""Encoder-decoders that are trained, by `model_type` and perhaps a variant."""

REFUSED_CAUSAL = {
    "llama4_text": {**_EXPERTS, "intermediate_size_mlp": 48, "attention_chunk_size": 8},
    "xlnet": {"d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 48},
}
"""Decoder-only ones that are refused, by `model_type`."""

REFUSED_SEQ2SEQ = {
    "fsmt": {**_BART, "langs": ["en", "de"], "src_vocab_size": 25, "tgt_vocab_size": 25},
    "nllb-moe": {**_BART, "num_experts": 4, "expert_capacity": 64, "encoder_sparse_step": 2, "decoder_sparse_step": 2},
    "prophetnet": {**_PROPHETNET, "ngram": 2, "num_buckets": 8, "relative_max_distance": 16},
}
"""Encoder-decoders that are refused, by `model_type`."""

# What no list knows, and what examining it must find.
UNLISTED = {
    "bitnet": _LLAMA,
    "gpt_neox_japanese": {**_NEOX, "intermediate_multiple_size": 2},
    "roberta": {**_NEOX, "is_decoder": True},
    "bert": {**_NEOX, "is_decoder": False},
}
"""Decoder-only ones that no list names: two with a cache that holds, one whose cache does not, and one that is refused
as it reads in both directions."""

_ALL = {**CAUSAL, **REFUSED_CAUSAL, **UNLISTED, **SEQ2SEQ, **REFUSED_SEQ2SEQ}


def make_config(name, vocab_size=25, **changes):
    """The config of a tiny model, without dropout."""
    common = {"vocab_size": vocab_size, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 1}
    settings = {**common, **_ALL[name], **changes}
    default = AutoConfig.for_model(name.split("/")[0], **settings)
    is_random = [key for key, value in vars(default).items() if re.search("drop|jitter", key) and is_number(value)]
    return AutoConfig.for_model(name.split("/")[0], **settings, **dict.fromkeys(is_random, 0.0))


def make_model(name, seed=0, vocab_size=25, **changes):
    """A tiny model with random weights, peaked enough not to be uniform."""
    torch.manual_seed(seed)
    auto_class = AutoModelForSeq2SeqLM if name in SEQ2SEQ or name in REFUSED_SEQ2SEQ else AutoModelForCausalLM
    return auto_class.from_config(make_config(name, vocab_size, **changes)).eval()
