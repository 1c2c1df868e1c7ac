"""Reads a run folder: config, iterations, metrics, predictions and warnings, even of an unfinished run.

Damage that an interrupted run can leave (missing files, a truncated last line, truncated predictions) is skipped and
listed in :attr:`Run.notes`. Any other unreadable file is an error.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.files import json_value
from rl4dialog.runs.report.predictions import Predictions, read_predictions
from rl4dialog.runs.results import is_complete, read_players, read_references
from rl4dialog.runs.run_folder import (
    CONFIG_FILE,
    PROVENANCE_FILE,
    RESULT_FILE,
    ROLLOUT_INFO_FILE,
    TRAINING_INFO_FILE,
    WARNINGS_FILE,
)

_METRICS_FILE = re.compile(r"(\w+)_split_metrics\.jsonl")
_PREDICTIONS_FILE = re.compile(r"epoch_(\d+)_(\w+)_split_predictions\.json")


@dataclass(frozen=True)
class Run:
    """The contents of a run folder.

    Attributes:
        path: The run folder.
        config: The resolved config; empty if there is none.
        provenance: Versions, hashes and hardware, if recorded.
        iterations: Logged values of each iteration's rollouts and update, in order.
        training: Logged values of a supervised run.
        metrics: Corpus scores by split, epoch and key.
        prediction_files: Predictions files by split and epoch.
        players: Test metrics of scripted players, by player and key.
        references: Test metrics of the reference replies, by key.
        warnings: Records of ``warnings.jsonl``.
        notes: Missing or damaged files, as sentences.
    """

    path: Path
    config: dict[str, Any]
    provenance: dict[str, Any]
    iterations: list[dict[str, Any]]
    training: dict[str, Any]
    metrics: dict[str, dict[int, dict[str, float]]]
    prediction_files: dict[str, dict[int, Path]]
    players: dict[str, dict[str, float]]
    references: dict[str, float] = field(default_factory=dict)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def column(self, key: str) -> list[float]:
        """Values logged under a key; NaN where there are none."""
        return [number(row.get(key)) for row in self.iterations]

    def epochs(self, split: str) -> list[int]:
        """Iterations after which a split was evaluated, in order; 0 is before training."""
        return sorted(self.metrics.get(split, {}).keys() | self.prediction_files.get(split, {}).keys())

    def predictions(self, split: str, epoch: int) -> Predictions | None:
        """Replies of an evaluation; ``None`` if there are none, or the file is damaged."""
        path = self.prediction_files.get(split, {}).get(epoch)
        if path is None:
            return None
        found = read_predictions(path)
        note = f"{path.name} is skipped: it is truncated."
        if found is None and note not in self.notes:
            self.notes.append(note)
        return found


def read_run(path: str | Path) -> Run:
    """Read a run folder.

    Raises:
        DataError: If the folder is not a run folder, or one of its files has unexpected contents.
    """
    path = Path(path).expanduser().absolute()
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; pass a run folder, which contains {CONFIG_FILE}")
    notes: list[str] = []
    metrics_files = {m[1]: file for file in sorted(path.iterdir()) if (m := _METRICS_FILE.fullmatch(file.name))}
    known = [CONFIG_FILE, ROLLOUT_INFO_FILE, TRAINING_INFO_FILE]
    if not metrics_files and not any((path / name).is_file() for name in known):
        raise DataError(f"{path} is not a run folder: it contains none of {', '.join(known)}, *_split_metrics.jsonl")
    rollouts, updates = (_read_lines(path / name, notes) for name in (ROLLOUT_INFO_FILE, TRAINING_INFO_FILE))
    config = _read_object(path / CONFIG_FILE)
    if not config:
        notes.append(f"There is no {CONFIG_FILE}.")
    if (path / RESULT_FILE).exists() and not is_complete(path):
        notes.append(f"{RESULT_FILE} is damaged, so the run counts as not complete.")
    return Run(
        path,
        config,
        _read_object(path / PROVENANCE_FILE),
        _merge(path, rollouts, updates) if rollouts else [],
        updates[-1] if updates and not rollouts else {},
        {split: read_metrics(file, notes) for split, file in metrics_files.items()},
        _find_predictions(path),
        read_players(path),
        read_references(path),
        _read_lines(path / WARNINGS_FILE, notes),
        notes,
    )


def number(value: Any) -> float:
    """Convert a logged value to a number; NaN if it is none."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def as_text(value: Any) -> str:
    """Format a config value for the page."""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _merge(path: Path, rollouts: list[dict[str, Any]], updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per iteration; if an iteration was logged twice, the later values win."""
    rows: dict[int, dict[str, Any]] = {}
    for records in (rollouts, updates):
        for i, record in enumerate(records, start=1):
            iteration = record.get("iteration", i)
            if not isinstance(iteration, int):
                raise DataError(f"{path}: the iteration of a logged line must be a whole number, not {iteration!r:.80}")
            rows.setdefault(iteration, {}).update({**record, "iteration": iteration})
    return [rows[iteration] for iteration in sorted(rows)]


def read_metrics(path: Path, notes: list[str]) -> dict[int, dict[str, float]]:
    """Read the evaluations of a split by iteration; none if there is no file, and NaN for what is no number.

    Args:
        path: The jsonl file.
        notes: Gets a note if the last line is truncated.
    """
    found: dict[int, dict[str, float]] = {}
    if path.is_file() and not path.stat().st_size:
        raise DataError(f"{path} is empty, but has a line for each evaluation; restore it, or remove it")
    for record in _read_lines(path, notes):
        epoch, metrics = record.get("epoch"), record.get("metrics")
        if not isinstance(epoch, int) or not isinstance(metrics, dict):
            raise DataError(f'{path}: every line must be {{"epoch": number, "metrics": {{...}}}}, not {record!r:.80}')
        found[epoch] = {str(key): number(value) for key, value in metrics.items()}
    return found


def _find_predictions(path: Path) -> dict[str, dict[int, Path]]:
    found: dict[str, dict[int, Path]] = {}
    for file in path.iterdir():
        if match := _PREDICTIONS_FILE.fullmatch(file.name):
            found.setdefault(match[2], {})[int(match[1])] = file
    return found


def _read_lines(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Records of a jsonl file; a truncated last line is skipped with a note."""
    if not path.is_file():
        return []
    records = []
    lines = [(i, line) for i, line in enumerate(_read_text(path).split("\n"), start=1) if line.strip()]
    for i, line in lines:
        try:
            record = json_value(line)
        except ValueError as error:
            if i == lines[-1][0]:
                notes.append(f"The last line of {path.name} is truncated and was skipped.")
                break
            raise DataError(f"{path}:{i} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise DataError(f"{path}:{i} must be a JSON object, not {record!r:.80}")
        records.append(record)
    return records


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json_value(_read_text(path))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} must be a JSON object, not {found!r:.80}")
    return found


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", errors="replace")  # an interruption may truncate a character
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
