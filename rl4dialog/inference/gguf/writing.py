"""Writing of GGUF files, one weight at a time, under a temporary name until they are complete."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGML_QUANT_VERSION, GGMLQuantizationType, GGUFWriter, LlamaFileType
from torch import Tensor

from rl4dialog.core.errors import RunFolderError
from rl4dialog.core.files import replaced

_FILE_TYPES = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
}
_OF_TORCH = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def dtype_of(weights_dtype: torch.dtype) -> str:
    """The number format that stores weights of this type exactly."""
    return _OF_TORCH.get(weights_dtype, "f32")


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside a file. It gets the file's name if the block succeeds, and is removed otherwise."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path, f".tmp{path.suffix}") as temporary:
            yield temporary
    except OSError as error:
        # numpy's error for a full disk has neither a number nor a cause.
        raise RunFolderError(
            f"{path} cannot be written: {error.strerror or error}; free up space or choose another --output"
        ) from error


def write_weights(writer: GGUFWriter, path: Path, weights: Iterable[tuple[str, Tensor]], dtype: str) -> None:
    """Write metadata and weights to a file.

    Args:
        writer: Has the metadata.
        path: The file.
        weights: The weights by name.
        dtype: One of `rl4dialog.core.pretrained.DTYPES`.

    Raises:
        OSError: If it cannot be written; if the disk is too small, before anything is.
    """
    writer.add_file_type(_FILE_TYPES[dtype])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    kinds = []
    n_bytes = 0
    weights = list(weights)
    for name, weight in weights:
        kind = _kind(name, weight, dtype)
        shape = gguf.quant_shape_to_byte_shape(weight.shape, kind)
        writer.add_tensor_info(name, shape, np.dtype(np.uint8), math.prod(shape), raw_dtype=kind)
        kinds.append(kind)
        n_bytes += math.prod(shape)
    free = shutil.disk_usage(path.parent).free
    if n_bytes > free:
        raise OSError(None, f"it needs {n_bytes / 2**20:,.0f} MiB, and the disk has {free / 2**20:,.0f} MiB left")
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for (_, weight), kind in zip(weights, kinds, strict=True):
            writer.write_tensor_data(gguf.quants.quantize(weight.float().contiguous().numpy(), kind))
    finally:
        writer.close()


def _kind(name: str, weight: Tensor, dtype: str) -> GGMLQuantizationType:
    """Number format of a weight. llama.cpp computes with norms, biases and positions in float32 only."""
    if weight.ndim < 2 or name == "position_embd.weight":
        return GGMLQuantizationType.F32
    kind = GGMLQuantizationType[dtype.upper()]
    block, _ = GGML_QUANT_SIZES[kind]
    return kind if weight.shape[-1] % block == 0 else GGMLQuantizationType.F16
