"""Files are complete or absent, and each weight has the number format that llama.cpp computes with."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from gguf import GGUFReader, GGUFWriter

from rl4dialog.core.errors import RunFolderError
from rl4dialog.inference.gguf.writing import dtype_of, replaced_file, write_weights

WEIGHTS = [
    ("token_embd.weight", torch.randn(6, 64)),
    ("position_embd.weight", torch.randn(8, 64)),
    ("blk.0.ffn_down.weight", torch.randn(64, 48)),
    ("output_norm.weight", torch.randn(64)),
]


def write(path: Path, dtype: str) -> dict[str, gguf.ReaderTensor]:
    write_weights(GGUFWriter(None, "gpt2"), path, WEIGHTS, dtype)
    reader = GGUFReader(path)
    assert reader.fields["general.file_type"].contents() == {"f32": 0, "f16": 1, "bf16": 32, "q8_0": 7}[dtype]
    return {tensor.name: tensor for tensor in reader.tensors}


@pytest.mark.parametrize(("dtype", "atol"), [("f32", 0), ("f16", 2e-3), ("bf16", 2e-2), ("q8_0", 3e-2)])
def test_weights_are_read_as_written(tmp_path: Path, dtype: str, atol: float) -> None:
    found = write(tmp_path / "model.gguf", dtype)
    assert list(found) == [name for name, _ in WEIGHTS]
    for name, weight in WEIGHTS:
        value = gguf.dequantize(found[name].data, found[name].tensor_type)
        np.testing.assert_allclose(value, weight.numpy(), rtol=0, atol=atol, err_msg=name)


def test_norms_and_positions_stay_exact_and_rows_without_whole_blocks_get_16_bits(tmp_path: Path) -> None:
    found = write(tmp_path / "model.gguf", "q8_0")
    assert [tensor.tensor_type.name for tensor in found.values()] == ["Q8_0", "F32", "F16", "F32"]


def test_format_of_saved_weights_loses_nothing() -> None:
    kinds = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
    assert [dtype_of(kind) for kind in kinds] == ["f32", "f16", "bf16", "f32"]


def test_file_replaces_the_old_one_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "model.gguf"
    with pytest.raises(KeyError), replaced_file(path) as temporary:
        temporary.write_text("half")
        raise KeyError
    assert list(path.parent.iterdir()) == []
    with replaced_file(path) as temporary:
        temporary.write_text("whole")
        assert temporary.suffix == ".gguf" and not path.exists()
    assert [each.name for each in path.parent.iterdir()] == ["model.gguf"] and path.read_text() == "whole"


def test_full_disk_is_noticed_before_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=2**10))
    path = tmp_path / "model.gguf"
    message = r"model.gguf cannot be written: it needs 0 MiB, and the disk has 0 MiB left; free up space or choose"
    with pytest.raises(RunFolderError, match=message), replaced_file(path) as temporary:
        write_weights(GGUFWriter(None, "gpt2"), temporary, WEIGHTS, "f32")
    assert list(tmp_path.iterdir()) == []


def test_disk_that_fills_up_while_writing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError("2048 requested and 1024 written")  # as numpy words it

    monkeypatch.setattr(GGUFWriter, "write_tensor_data", full)
    with pytest.raises(RunFolderError, match="2048 requested and 1024 written"), replaced_file(tmp_path / "x") as path:
        write_weights(GGUFWriter(None, "gpt2"), path, WEIGHTS, "f32")
    assert list(tmp_path.iterdir()) == []
