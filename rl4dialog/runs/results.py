"""The result of a run: ``result.json``, and beside it the metrics of scripted players and of the reference replies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import RunFolderError
from rl4dialog.core.files import json_value
from rl4dialog.runs.run_folder import (
    CONFIG_FILE,
    PLAYERS_FILE,
    REFERENCES_FILE,
    RESULT_FILE,
    RunFolder,
    is_being_written,
)

Metrics = Mapping[str, float]


def write_result(
    run_folder: RunFolder, iterations: int, before: Mapping[str, Metrics], after: Mapping[str, Metrics]
) -> None:
    """Write the result that marks a run as complete.

    Args:
        run_folder: Folder of the run, otherwise complete.
        iterations: Number of iterations; epochs in a supervised run.
        before: Metrics by split, before training.
        after: Metrics by split, after training.
    """
    splits = {split: {"before": dict(before[split]), "after": dict(after[split])} for split in before}
    run_folder.write_json(RESULT_FILE, {"iterations": iterations, **splits})


def is_complete(run: str | Path) -> bool:
    """Whether the run in a folder is complete."""
    return bool(_read(Path(run)))


def run_state(run: str | Path) -> str:
    """Return ``running`` if a process writes to the folder of a run, otherwise ``complete`` or ``stopped``."""
    folder = Path(run)
    return "running" if is_being_written(folder) else "complete" if is_complete(folder) else "stopped"


def read_result(run: str | Path) -> dict[str, Any]:
    """Read the result written by :func:`write_result`."""
    folder = Path(run)
    check_is_run(folder)
    result = _read(folder)
    if not result:
        raise RunFolderError(f"the run {folder} is not complete: it has no {RESULT_FILE}, which is written last")
    return result


def read_players(run: str | Path) -> dict[str, dict[str, float]]:
    """Read the test metrics of the datapool's scripted players; empty if there are none, or the file is damaged."""
    try:
        found = json_value((Path(run) / PLAYERS_FILE).read_text(encoding="utf-8"))
        return {name: _numbers(metrics) for name, metrics in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def read_references(run: str | Path) -> dict[str, float]:
    """Read the test metrics of the reference replies; empty if there are none, or the file is damaged."""
    try:
        return _numbers(json_value((Path(run) / REFERENCES_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {key: math.nan if value is None else float(value) for key, value in metrics.items()}


def check_is_run(folder: Path) -> None:
    """Check that a folder is a run folder."""
    if not (folder / CONFIG_FILE).is_file():
        what = f"contains no {CONFIG_FILE}" if folder.is_dir() else "does not exist"
        raise RunFolderError(f"{folder} {what}; pass a run folder: <base path>/<project>/<experiment>")


def _read(folder: Path) -> dict[str, Any]:
    try:
        result = json_value((folder / RESULT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return result if isinstance(result, dict) and "iterations" in result else {}
