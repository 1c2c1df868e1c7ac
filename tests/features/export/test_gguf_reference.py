"""Exported files in llama.cpp: the same tokens of texts, and the same greedy replies. Needs llama-cpp-python."""

import pytest
import torch
from gguf_models import byte_level, llama3, qwen2, sentencepiece, tiny_model, with_marker

from rl4dialog.features.export.gguf import (
    ARCHITECTURES,
    TEXTS,
    architecture_of,
    begun_file,
    stored_weights,
    write_weights,
)

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (pip install llama-cpp-python)")
TOKENIZERS = {
    "gpt-2": byte_level,
    "smollm": lambda: byte_level(digits=True),
    "qwen2": qwen2,
    "llama-bpe": llama3,
    "sentencepiece": sentencepiece,
    "marker": lambda: with_marker(byte_level()),
}
N_TOKENS = 50


def in_llama_cpp(path, model, tokenizer):
    """Write a model, and load it with llama.cpp; its cache is float32, as that of transformers."""
    writer, _ = begun_file(model, tokenizer, "tiny")
    write_weights(writer, path, stored_weights(model, architecture_of(model)), "f32")
    return llama_cpp.Llama(str(path), n_ctx=128, n_threads=1, type_k=0, type_v=0, verbose=False)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_greedy_replies_are_the_same(tmp_path, name):
    tokenizer = byte_level()
    model = tiny_model(name, tokenizer, **{"n_positions" if name == "gpt2" else "max_position_embeddings": 128})
    llama = in_llama_cpp(tmp_path / "model.gguf", model, tokenizer)
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        expected = model.generate(
            torch.tensor([ids]), min_new_tokens=N_TOKENS, max_new_tokens=N_TOKENS, do_sample=False, eos_token_id=None
        )[0, len(ids) :].tolist()
        found = [token for token, _ in zip(llama.generate(ids, temp=0.0, repeat_penalty=1.0), range(N_TOKENS))]  # noqa: B905
        assert found == expected


@pytest.mark.parametrize("name", TOKENIZERS)
def test_texts_are_the_same_tokens(tmp_path, name):
    tokenizer = TOKENIZERS[name]()
    llama = in_llama_cpp(tmp_path / "model.gguf", tiny_model("llama", tokenizer), tokenizer)
    special = f"{tokenizer.bos_token}user\n7 + 12<EOU>"
    for text in (*TEXTS, " a space before", *(() if name == "sentencepiece" else (special,))):
        found = llama.tokenize(text.encode(), add_bos=name == "sentencepiece", special=True)
        assert found == tokenizer(text)["input_ids"], text
