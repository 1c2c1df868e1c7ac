"""Conversion of GGUF files to folders that ``from_pretrained`` loads, cached by the content of the file.

Quantized weights become float32 with the values that the file represents; the precision lost by quantization is not
restored. The folder also has the file's tokenizer and chat template.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from rl4dialog.core.cache import cached_folder
from rl4dialog.core.errors import ModelError
from rl4dialog.core.manifest import file_hash
from rl4dialog.core.pretrained import check_weights

_logger = logging.getLogger(__name__)
CACHED = "gguf"
"""Cache category of converted files."""
DTYPES = ("f32", "f16", "bf16", "q8_0")
"""Number formats of exported weights, by llama.cpp's names."""
# Pre-tokenizers, by their names in GGUF files, with GPT-2's rules. Transformers takes these for all names that it does
# not know.
_OF_GPT2 = ("default", "gpt-2")
# Settings of configs, by key in the file, that transformers does not read, by its name of the architecture.
_SIZES = {
    "gpt2": {"n_positions": "gpt2.context_length", "n_inner": "gpt2.feed_forward_length"},
    "qwen3": {"head_dim": "qwen3.attention.key_length"},
}


def folder_of_gguf(path: Path) -> Path:
    """Convert a GGUF file, or return the folder of an earlier conversion.

    Args:
        path: The file, of an architecture that transformers reads from GGUF.

    Returns:
        A cached folder with float32 weights in safetensors, config and tokenizer.
    """
    if not path.is_file():
        raise ModelError(f"there is no file {path}; model_name must be the path of an existing .gguf file")
    if "-of-0" in path.stem:
        raise ModelError(f"{path} is one of several parts of a model; merge them first (llama-gguf-split --merge)")
    status = path.stat()
    sha256 = _sha256(path.resolve(), status.st_size, status.st_mtime_ns)
    return cached_folder(CACHED, gguf_key(sha256), functools.partial(convert, path))


def gguf_key(sha256: str) -> dict[str, Any]:
    """Cache key of a converted file, from its SHA-256 in hexadecimal."""
    return {"gguf": sha256}


@functools.cache
def _sha256(path: Path, size: int, modified_ns: int) -> str:
    """Hash of a file's content, computed again if size or time of modification change."""
    del size, modified_ns
    return file_hash(path)


def convert(path: Path, folder: Path) -> None:
    """Write the model and the tokenizer of a GGUF file into a folder, with float32 weights."""
    try:
        tokenizer, config, model = read_gguf(path)
    except Exception as error:  # gguf and transformers raise ValueError, KeyError, ImportError, ... by what is wrong
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise ModelError(
            f"{path} cannot be read as a GGUF model ({reason}). The file may be damaged or half downloaded, or of an "
            f"architecture that transformers does not read from GGUF"
        ) from error
    from safetensors.torch import save_file

    tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    # Not model.save_pretrained(), which refuses models whose weights were quantized. A tied weight is saved once, under
    # its first name, that of the embedding, where models with another head look for it.
    weights = model.state_dict(keep_vars=True)
    first_names = {id(weight): name for name, weight in reversed(weights.items())}.values()
    saved = {name: weights[name].detach().contiguous() for name in first_names}
    save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})


def read_gguf(path: Path) -> tuple[Any, Any, Any]:
    """Read a file, without catching the many errors of damaged ones.

    Returns:
        Tokenizer, config and language model, with float32 weights. The model's own config says that it is quantized.
    """
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False}
    fields = GGUFReader(path).fields
    tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
    _mend_pre_tokenizer(tokenizer, path, fields)
    config = AutoConfig.from_pretrained(path.parent, **where)
    _mend_sizes(config, fields)
    auto_class: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with redirect_stderr(StringIO()):  # a progress bar
        model, info = auto_class.from_pretrained(
            path.parent, config=config, dtype="float32", output_loading_info=True, **where
        )
    check_weights(model, info, str(path))
    config.architectures, config.dtype = [type(model).__name__], "float32"
    return tokenizer, config, model


def _mend_sizes(config: Any, fields: Mapping[str, Any]) -> None:
    """Set sizes that transformers leaves at their defaults, whatever the file says."""
    if config.model_type not in _SIZES:
        return
    for name, key in _SIZES[config.model_type].items():
        if key in fields:
            setattr(config, name, int(fields[key].contents()))


def _mend_pre_tokenizer(tokenizer: Any, path: Path, fields: Mapping[str, Any]) -> None:
    """Rebuild how a byte-level BPE splits texts before merging, where transformers takes GPT-2's rules."""
    from tokenizers import pre_tokenizers

    keys = ("tokenizer.ggml.model", "tokenizer.ggml.pre")
    model, pre = (str(fields[key].contents()) if key in fields else "default" for key in keys)
    if model != "gpt2":
        return
    if pre == "smollm":
        byte_level = tokenizer.backend_tokenizer.pre_tokenizer
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), byte_level]
        )
    elif pre not in _OF_GPT2 and isinstance(tokenizer.backend_tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
        _logger.warning(
            "%s: its tokenizer splits texts by the rules of %r, but transformers takes GPT-2's; some texts get other "
            "tokens than the model was trained on. Set tokenizer.model_name to the model's original tokenizer.",
            path,
            pre,
        )
