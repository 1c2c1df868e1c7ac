"""Interface of experiment trackers, and what all of them need."""

from __future__ import annotations

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4dialog.runs.run_folder import to_plain

_MAX_TABLE_ROWS = 100
_SECRET_KEY = re.compile(r"(api_?key|passw(or)?d|secret|(access|auth|bearer|hf|api|write)_?token)$", re.IGNORECASE)
_LOGIN_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")
_HIDDEN = "***"


@dataclass(frozen=True)
class RunDescription:
    """What a tracker needs to start or continue a run.

    Attributes:
        root: Run folder. Local files of a tracker are in it, or in its parent, the project folder.
        project: Name of the project.
        name: Name of the run.
        config: Resolved config, without secrets.
        entity: User or team on Weights & Biases.
        run_id: Id of the tracker's run to continue; by default a new one starts.
    """

    root: Path
    project: str
    name: str
    config: Mapping[str, Any]
    entity: str | None = None
    run_id: str | None = None


class ExperimentTracker(ABC):
    """A run in an experiment tracker, which starts when the object is created.

    Any method can raise any exception; `ExperimentTrackers` then disables the tracker.

    Attributes:
        run_id: Id with which the run can be continued.
    """

    run_id: str

    @abstractmethod
    def log(self, values: Mapping[str, Any], counter: str, step: int) -> None:
        """Log values.

        Args:
            values: Plain values by key; ``None`` stands for NaN and infinities.
            counter: What the step counts: ``iteration``, or ``epoch`` for evaluations.
            step: Number of the iteration.
        """

    @abstractmethod
    def log_predictions(self, split: str, epoch: int, predictions: Sequence[Mapping[str, Any]], file: Path) -> None:
        """Log the predictions of an evaluation, also found in a file of the run folder."""

    @abstractmethod
    def log_summary(self, values: Mapping[str, Any], step: int) -> None:
        """Log the final result."""

    @abstractmethod
    def log_report(self, file: Path) -> None:
        """Upload the report."""

    @abstractmethod
    def finish(self, failed: bool) -> None:
        """End the run."""


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Select the numbers."""
    return {key: float(value) for key, value in values.items() if isinstance(value, (int, float))}


def table(predictions: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of the first predictions; conversations are JSON texts, since their keys differ by row."""
    columns = list(predictions[0]) if predictions else []
    return columns, [[_cell(row.get(column)) for column in columns] for row in predictions[:_MAX_TABLE_ROWS]]


def hide_secrets(config: Any) -> Any:
    """Copy a config with the values of keys such as ``api_key`` and ``password`` hidden."""
    if isinstance(config, Mapping):
        return {
            key: _HIDDEN if isinstance(value, str) and _SECRET_KEY.search(str(key)) else hide_secrets(value)
            for key, value in config.items()
        }
    return [hide_secrets(value) for value in config] if isinstance(config, list) else config


def redact(text: str) -> str:
    """Remove from a message what environment variables hold as secrets, and logins in addresses."""
    for name, value in os.environ.items():
        if len(value) >= 8 and re.search(r"(KEY|TOKEN|PASSWORD|SECRET)$", name):
            text = text.replace(value, _HIDDEN)
    return _LOGIN_IN_URL.sub(f"{_HIDDEN}@", text)


def _cell(value: Any) -> Any:
    plain = to_plain(value)
    return json.dumps(plain, ensure_ascii=False) if isinstance(plain, (list, dict)) else plain
