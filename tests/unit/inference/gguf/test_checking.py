"""A file of another model or tokenizer is noticed; every architecture and tokenizer passes in every number format."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from gguf import MODEL_ARCH_NAMES, GGUFWriter
from gguf_models import byte_level, llama3, qwen2, sentencepiece, tiny_model, with_marker

from rl4dialog.core.errors import ModelError
from rl4dialog.core.pretrained import DTYPES
from rl4dialog.inference.gguf.architectures import ARCHITECTURES, Architecture, architecture_of, stored_weights
from rl4dialog.inference.gguf.checking import check_file, log_probs, token_ids
from rl4dialog.inference.gguf.vocabulary import add_vocabulary
from rl4dialog.inference.gguf.writing import write_weights


def check(
    path: Path,
    model: Any,
    tokenizer: Any,
    dtype: str = "f32",
    architecture: Architecture | None = None,
    written: Any = None,
) -> float:
    """Write a model, perhaps with another architecture or tokenizer, and check the file."""
    architecture = architecture or architecture_of(model)
    writer = GGUFWriter(None, MODEL_ARCH_NAMES[architecture.gguf])
    writer.add_name("tiny")
    architecture.add_metadata(writer, model.config)
    add_vocabulary(writer, written or tokenizer, model.config.vocab_size, None)
    write_weights(writer, path, stored_weights(model, architecture), dtype)
    texts = token_ids(tokenizer)
    return check_file(path, texts, log_probs(model, texts), dtype)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_architecture_is_the_same_model(tmp_path: Path, name: str, dtype: str) -> None:
    tokenizer = byte_level()
    kl = check(tmp_path / "model.gguf", tiny_model(name, tokenizer), tokenizer, dtype)
    assert kl < {"f32": 1e-10, "f16": 1e-4, "bf16": 2e-3, "q8_0": 2e-2}[dtype]


@pytest.mark.parametrize(
    "tokenizer",
    [lambda: byte_level(digits=True), qwen2, llama3, sentencepiece, lambda: with_marker(byte_level())],
    ids=["smollm", "qwen2", "llama-bpe", "sentencepiece", "marker"],
)
def test_every_tokenizer_reads_the_same_tokens(tmp_path: Path, tokenizer: Any) -> None:
    made = tokenizer()
    check(tmp_path / "model.gguf", tiny_model("llama", made), made)


def test_short_models_are_checked_on_the_beginning_of_texts(tmp_path: Path) -> None:
    tokenizer = byte_level()
    check(tmp_path / "model.gguf", tiny_model("gpt2", tokenizer, n_positions=12), tokenizer)


def test_other_sizes_than_the_usual_ones_are_read(tmp_path: Path) -> None:
    tokenizer = byte_level()
    check(tmp_path / "model.gguf", tiny_model("gpt2", tokenizer, n_inner=96), tokenizer)
    check(tmp_path / "model.gguf", tiny_model("qwen3", tokenizer, head_dim=16), tokenizer)


def test_weights_in_the_order_of_another_program_are_noticed(tmp_path: Path) -> None:
    tokenizer = byte_level()
    wrong = dataclasses.replace(ARCHITECTURES["llama"], stored=lambda name, weight, config: weight)
    with pytest.raises(ModelError, match=r"differs from the run's by .* nats per token .*so the file was removed"):
        check(tmp_path / "model.gguf", tiny_model("llama", tokenizer), tokenizer, architecture=wrong)


def test_another_tokenizer_is_noticed(tmp_path: Path) -> None:
    model = tiny_model("llama", byte_level())
    with pytest.raises(ModelError, match=r"reads .* as other tokens than the run's"):
        check(tmp_path / "model.gguf", model, byte_level(), written=byte_level(digits=True))


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="transformers cannot read the exported file"):
        check_file(tmp_path / "model.gguf", [], [], "f32")
