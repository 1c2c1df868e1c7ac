"""Whether two runs are identical: weights bit by bit, log lines, metrics and predictions by value."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rl4dialog.core.errors import DataError
from rl4dialog.core.files import json_value
from rl4dialog.policies.saving import tensors_hash
from rl4dialog.runs.run_folder import CONVERSATIONS_FILE, MODEL_FOLDER, ROLLOUT_INFO_FILE, TRAINING_INFO_FILE

_MISSING = "(missing)"
_LOGS = (
    *(ROLLOUT_INFO_FILE, TRAINING_INFO_FILE, CONVERSATIONS_FILE),
    *("*_split_metrics.jsonl", "epoch_*_split_predictions.json"),
)


@dataclass(frozen=True)
class Finding:
    """The comparison of a file: the first place where it differs in two runs, if any, and both values there."""

    file: str
    where: str | None = None
    original: Any = None
    reproduced: Any = None


def compare_runs(original: Path, reproduced: Path) -> list[Finding]:
    """Compare two runs of one config, except for times and memory: one finding for each file that either run has."""
    findings = []
    for pattern in (*_LOGS, f"{MODEL_FOLDER}/**/*.safetensors"):
        found = {path.relative_to(run).as_posix() for run in (original, reproduced) for path in run.glob(pattern)}
        compare = _compare_weights if pattern.endswith(".safetensors") else _compare_records
        names = sorted(found, key=lambda name: (len(name), name))
        findings += [compare(name, original / name, reproduced / name) for name in names]
    return findings


def _records(path: Path) -> list[dict[str, Any]]:
    """Records of a JSON list, or of a jsonl file, which can be compressed; none if the file does not exist."""
    if not path.is_file():
        return []
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        found = json_value(text) if path.suffix == ".json" else [json_value(line) for line in text.split("\n") if line]
        return [dict(_leaves(record)) for record in found]
    except (OSError, EOFError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path} must contain JSON objects, and cannot be read: {error}") from error


def _leaves(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Entries of a record that must be reproducible, with those of its metrics."""
    for key, value in record.items():
        if key == "metrics" and isinstance(value, dict):
            yield from value.items()
        elif not (key.startswith(("time/", "memory/")) or key.endswith("_s")):
            yield key, value


def _compare_records(name: str, original: Path, reproduced: Path) -> Finding:
    records, others = _records(original), _records(reproduced)
    for number, (one, other) in enumerate(itertools.zip_longest(records, others), start=1):
        if one is None or other is None:
            return Finding(name, "number of records", len(records), len(others))
        for key in dict.fromkeys([*one, *other]):
            left, right = one.get(key, _MISSING), other.get(key, _MISSING)
            if left != right:
                places = {"iteration": "iteration", "epoch": "epoch", "sample_id": "sample"}
                place = next((f"{word} {one[at]}" for at, word in places.items() if at in one), f"line {number}")
                return Finding(name, f"{place}, {key}", left, right)
    return Finding(name)


def _compare_weights(name: str, original: Path, reproduced: Path) -> Finding:
    if not (original.is_file() and reproduced.is_file()):
        found = (str(path) if path.is_file() else _MISSING for path in (original, reproduced))
        return Finding(name, "the file", *found)
    one, other = load_file(original), load_file(reproduced)
    hashes = tensors_hash(one), tensors_hash(other)
    if hashes[0] == hashes[1]:
        return Finding(name)
    for tensor in sorted(one.keys() | other.keys()):
        if tensor not in one or tensor not in other or one[tensor].shape != other[tensor].shape:
            found = (f"shape {tuple(each[tensor].shape)}" if tensor in each else _MISSING for each in (one, other))
            return Finding(name, tensor, *found)
        gap = one[tensor].double() - other[tensor].double()
        if gap.any():
            index = tuple(int(i) for i in torch.nonzero(gap)[0])
            return Finding(name, f"{tensor}{list(index)}", *(float(state[tensor][index]) for state in (one, other)))
    return Finding(name, "bits of equal numbers", hashes[0][:12], hashes[1][:12])
