"""A tiny Llama as a GGUF file, written by the conventions of llama.cpp, which transformers is to undo."""

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

CORPUS = ["How are you?", "I am fine, thank you!", "It was 15 to 3 in 2023.", "We'll see you at  10 then."] * 3
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def train_bpe(digits):
    """A byte-level BPE; ``digits`` splits numbers into digits first, as SmolLM does."""
    bpe = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = [pre_tokenizers.Digits(individual_digits=True), byte_level]
    bpe.pre_tokenizer = pre_tokenizers.Sequence(split) if digits else byte_level
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=352, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(CORPUS, trainer)
    return bpe


def write_llama(path, quantized=False, pre="smollm", architecture="llama", without=None):
    """Write a model and return it; the weights of quantized files are those that the file stands for."""
    bpe = train_bpe(digits=pre == "smollm")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=bpe.get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("A training run of its own")
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    vocab = sorted(bpe.get_vocab(), key=bpe.get_vocab().get)
    writer.add_token_list(vocab)
    writer.add_token_types([3 if token in _SPECIAL else 1 for token in vocab])
    writer.add_token_merges([" ".join(pair) for pair in _merges(bpe)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    kind = gguf.GGMLQuantizationType.Q8_0
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" or _name(name) == without:  # the head is tied
            continue
        if quantized and weight.ndim == 2:
            packed = gguf.quants.quantize(weight.numpy(), kind)
            weight.copy_(torch.from_numpy(gguf.quants.dequantize(packed, kind)))
            n_heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
            rows = gguf.quants.quantize(_interleaved(weight.numpy(), n_heads), kind)
            writer.add_tensor(_name(name), rows, raw_dtype=kind)
        else:
            n_heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
            writer.add_tensor(_name(name), _interleaved(weight.numpy(), n_heads))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _merges(bpe):
    import json

    return [tuple(merge) for merge in json.loads(bpe.to_str())["model"]["merges"]]


def _interleaved(weight, n_heads):
    """Rows of queries and keys in llama.cpp's order: the two halves of each head's rotary dimensions alternate."""
    if n_heads is None:
        return weight
    n_rows = weight.shape[0]
    return np.ascontiguousarray(
        weight.reshape(n_heads, 2, n_rows // n_heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)
    )


def _name(name):
    """llama.cpp's name of a weight."""
    parts = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers": "blk",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for ours, theirs in parts.items():
        name = name.replace(ours, theirs)
    return name
