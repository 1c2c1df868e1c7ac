"""The end of a run: ``result.json``, which is written last. Where it is, the run is complete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import RunFolderError
from rl4dialog.runs.run_folder import CONFIG_FILE, RESULT_FILE, RunFolder

Metrics = Mapping[str, float]


def write_result(
    run_folder: RunFolder, iterations: int, before: Mapping[str, Metrics], after: Mapping[str, Metrics]
) -> None:
    """Write down that a run is complete, and what it changed.

    Args:
        run_folder: Of the run; everything else is in it.
        iterations: How many there were; of a supervised run, 1.
        before: Metrics by split, before training.
        after: The same after it.

    Raises:
        RunFolderError: If it cannot be written.
    """
    splits = {split: {"before": dict(before[split]), "after": dict(after[split])} for split in before}
    run_folder.write_json(RESULT_FILE, {"iterations": iterations, **splits})


def is_complete(run: str | Path) -> bool:
    """Whether the run in a folder has come to its end."""
    return bool(_read(Path(run)))


def read_result(run: str | Path) -> dict[str, Any]:
    """What :func:`write_result` wrote.

    Raises:
        RunFolderError: If the folder holds no run, or one that is not complete.
    """
    folder = Path(run)
    check_is_run(folder)
    result = _read(folder)
    if not result:
        raise RunFolderError(f"the run {folder} is not complete: it has no {RESULT_FILE}, which is written at its end")
    return result


def check_is_run(folder: Path) -> None:
    """Check that a folder is a run's.

    Raises:
        RunFolderError: If it is not.
    """
    if not (folder / CONFIG_FILE).is_file():
        what = f"holds no {CONFIG_FILE}" if folder.is_dir() else "does not exist"
        raise RunFolderError(f"{folder} {what}; give the folder of a run: <base path>/<project>/<experiment>")


def _read(folder: Path) -> dict[str, Any]:
    try:
        result = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return result if isinstance(result, dict) and "iterations" in result else {}
