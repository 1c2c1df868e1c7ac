"""Checks a run folder of unknown origin for what its config would execute, and for what it names outside the folder.

A run that was trained here is known by a record outside all run folders, as a folder could say anything about itself.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl4dialog.core.cache import content_hash
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.files import to_plain

# Component arguments that name a program, script or function to execute.
_PROGRAMS = {
    **{"hf_evaluate": ("name",), "spice": ("java", "spice_path"), "spider": ("java", "spice_path")},
    "text_arena": ("opponent", "player"),
}

# Arguments of any component: what receives something or is sent, and files that are written.
_RECEIVERS = re.compile(r"(?:\w+_)?(?:url|uri|host|address)|(?!vec_)\w+_env|hub_\w+|push_to_hub|report_to|trackio_\w+")
_WRITTEN = ("cache_path", "tensorboard_log")
# Files and models that are read as data. Alone, they can go nowhere; next to a receiver, they are listed too.
_READ = re.compile(r"(?:\w+_)?(?:path|file|folder|dir)|\w*model_name|tokenizer_name|(?:dataset|tokenizer|wmt)_id")
_MODELS = ("ref_model", "intent_model", "critic_from", "deepspeed", "fsdp_config")
_READ_BY = {"bert_score": ("model_type",), "bleurt": ("checkpoint", "config_name"), "summaCConv": ("models",)}
_TRACKERS = ("wandb", "mlflow", "trackio")
Config = Mapping[str, Any]
_OF_TRAINING = ("alg", "callbacks", "logging", "warm_start")


def refuse_code(
    config: Config, run: Path, written: Config | None = None, trains: bool = False, others: Sequence[str] = ()
) -> None:
    """Refuse a run's config that would execute custom code, or send or write something outside of its folder.

    ``written`` is its config without overrides. Settings of training count only if it ``trains``. ``others`` is
    anything else in the folder that names code.
    """
    code = [*_code(config), *others]
    is_known = False  # whether a run was trained here with exactly the same blocks around what it names
    with suppress(OSError, RuntimeError):
        is_known = _record(config if written is None else written).exists()
    found = [] if is_known else list(outside(config, trains))
    reached = [name for name, _ in found] if any(is_receiver for _, is_receiver in found) else []
    does = [f"execute code on this machine ({', '.join(code)})"] if code else []
    does += [f"use addresses, keys or files outside of its folder ({', '.join(reached)})"] if reached else []
    if does:
        cure = "Review it and pass --trust (trust=True in Python) if you trust it, or override it with --set"
        raise ConfigError(f"the config of the run {run} would {' and '.join(does)}. {cure}")


def remember(config: Mapping[str, Any]) -> None:
    """Remember that the user trained with what a config names, so that the run needs no trust on this machine."""
    with suppress(OSError, RuntimeError):  # without a home folder, the run counts as foreign
        record = _record(config)
        record.parent.mkdir(parents=True, exist_ok=True)
        record.touch()


def outside(config: Mapping[str, Any], trains: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield what a config names outside of its folder, and whether it receives, is sent or is written to anything."""
    for key, ids, name, value in arguments_of({k: v for k, v in config.items() if trains or k not in _OF_TRAINING}):
        is_address = _RECEIVERS.fullmatch(name) or name in _WRITTEN or (name == "outputs" and value in _TRACKERS)
        is_read = _READ.fullmatch(name) or name in _MODELS or _is_of(ids, name, _READ_BY)
        if not (is_address or is_read) or value in (None, False, "", "none"):
            continue
        is_address = bool(is_address) or "://" in str(value)
        if is_address or not str(value).startswith("builtin/"):
            yield f"{key}: {value}", is_address


def arguments_of(
    node: Any, key: str = "", ids: tuple[str, ...] = (), name: str = ""
) -> Iterator[tuple[str, tuple[str, ...], str, Any]]:
    """Yield all values of a config: dotted key, ids of the components around it, name of the argument, value."""
    if isinstance(node, Mapping):
        own = (*ids, str(node.get("id")))
        for inner_name, inner in node.items():
            where = f"{key}.{inner_name}" if key else str(inner_name)
            # In a mapping of files, the names are those of splits.
            yield from arguments_of(inner, where, own, name if _READ.fullmatch(name) else str(inner_name))
    elif isinstance(node, list):
        for i, inner in enumerate(node):
            yield from arguments_of(inner, f"{key}[{i}]", ids, name)
    else:
        yield key, ids, name, node


def _is_of(ids: Collection[str], name: str, arguments: Mapping[str, Collection[str]]) -> bool:
    return any(name in arguments.get(id, ()) for id in ids)


def _code(config: Mapping[str, Any]) -> Iterator[str]:
    """What a config executes."""
    yield from (f"imports: {name}" for name in config.get("imports") or ())
    for _, ids, name, value in arguments_of(config):
        if _is_of(ids, name, _PROGRAMS) and value not in (None, "random"):  # a choice of text_arena that is no function
            yield f"{next(id for id in reversed(ids) if id in _PROGRAMS)}.{name}: {value}"
    module, is_imported, _ = str((config.get("env") or {}).get("id")).rpartition(":")
    if is_imported:  # gymnasium's form for an environment that its module registers
        yield f"env.id: {module}"


def _record(config: Mapping[str, Any]) -> Path:
    """The file that says that a user trained with what a config names: with all of the blocks that name it.

    A block also says which model is asked, how often and for how much: all that makes the use of a key another one.
    """
    blocks = sorted({re.split(r"[.\[:]", name, maxsplit=1)[0] for name, _ in outside(config)})
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    digest = content_hash(json.dumps([name, to_plain(config[name])], sort_keys=True) for name in blocks)
    return state / "rl4dialog" / "trained_with" / digest
