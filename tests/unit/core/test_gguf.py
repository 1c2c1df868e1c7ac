"""A GGUF file becomes a folder with the same weights, tokens and chat template; one that cannot be read is named."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import torch
from gguf_file import CORPUS, TEMPLATE, train_bpe, write_llama
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl4dialog.core import gguf
from rl4dialog.core.errors import ModelError, RunFolderError
from rl4dialog.core.gguf import folder_of_gguf


@pytest.mark.parametrize("quantized", [False, True], ids=["float32", "q8_0"])
def test_the_folder_has_the_weights_of_the_file(tmp_path: Path, quantized: bool) -> None:
    original = write_llama(tmp_path / "model.gguf", quantized)
    folder = folder_of_gguf(tmp_path / "model.gguf")
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert loaded.dtype == torch.float32
    assert not hasattr(loaded.config, "quantization_config")
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
    for name, weight in original.state_dict().items():
        # A float32 file is copied; quantizing weights that were quantized rounds their scales once more.
        torch.testing.assert_close(loaded.state_dict()[name], weight, rtol=0, atol=1e-3 if quantized else 0, msg=name)
    ids = torch.arange(3, 60)[None]
    torch.testing.assert_close(loaded(ids).logits, original(ids).logits, rtol=0, atol=0.05 if quantized else 1e-4)


def test_the_tokenizer_splits_texts_as_the_original(tmp_path: Path) -> None:
    write_llama(tmp_path / "model.gguf")
    tokenizer = AutoTokenizer.from_pretrained(folder_of_gguf(tmp_path / "model.gguf"))
    original = train_bpe(digits=True)
    for text in [*CORPUS, "at  2 or 1999", "<|im_start|>user\n7<|im_end|>"]:
        assert tokenizer(text)["input_ids"] == original.encode(text).ids, text
    assert tokenizer.chat_template == TEMPLATE
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")


@pytest.mark.parametrize("pre, is_named", [("gpt-2", False), ("smollm", False), ("qwen2", False), ("poro-chat", True)])
def test_rules_of_splitting_that_are_lost_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, pre: str, is_named: bool
) -> None:
    write_llama(tmp_path / "model.gguf", pre=pre)
    with caplog.at_level(logging.WARNING, "rl4dialog"):
        folder_of_gguf(tmp_path / "model.gguf")
    assert (f"splits texts by the rules of '{pre}'" in caplog.text) == is_named


def test_a_file_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    write_llama(path)
    folder = folder_of_gguf(path)
    monkeypatch.setattr(gguf, "read_gguf", lambda path: pytest.fail("converted again"))
    assert folder_of_gguf(path.rename(tmp_path / "renamed.gguf")) == folder
    (folder / "model.safetensors").unlink()  # a damaged conversion is not used
    with pytest.raises(pytest.fail.Exception, match="converted again"):
        folder_of_gguf(tmp_path / "renamed.gguf")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_llama(path)
    for kept in (path.stat().st_size // 2, 2000, 10, 0):
        os.truncate(path, kept)
        with pytest.raises(ModelError, match=r"model.gguf cannot be read as a GGUF model .*half downloaded"):
            folder_of_gguf(path)


def test_a_text_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("Not found\n" * 100)
    with pytest.raises(ModelError, match="cannot be read as a GGUF model"):
        folder_of_gguf(tmp_path / "model.gguf")


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    write_llama(tmp_path / "model.gguf", architecture="starwars")
    with pytest.raises(ModelError, match="starwars"):
        folder_of_gguf(tmp_path / "model.gguf")


def test_a_file_without_all_weights_is_not_converted(tmp_path: Path) -> None:
    write_llama(tmp_path / "model.gguf", without="blk.1.attn_q.weight")
    with pytest.raises(ModelError, match=r"weights are missing .*\(model.layers.1.self_attn.q_proj.weight\)"):
        folder_of_gguf(tmp_path / "model.gguf")


def test_a_missing_file_and_a_part_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no file .*none\.gguf"):
        folder_of_gguf(tmp_path / "none.gguf")
    (tmp_path / "big-00001-of-00003.gguf").touch()
    with pytest.raises(ModelError, match="one of several parts"):
        folder_of_gguf(tmp_path / "big-00001-of-00003.gguf")


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL4DIALOG_CACHE", str(tmp_path / "cache"))
    write_llama(tmp_path / "model.gguf")

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(RunFolderError, match="set RL4DIALOG_CACHE to a folder with space"):
        folder_of_gguf(tmp_path / "model.gguf")
