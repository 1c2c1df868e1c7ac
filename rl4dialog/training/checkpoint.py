"""Checkpoints: the complete state of a run, written atomically.

``checkpoints/iteration_000020/`` holds the trainee's tensors, ``state.json`` (all small values) and ``manifest.json``
with sizes and hashes to detect damaged checkpoints. ``checkpoints/unfinished_iteration/`` is a checkpoint from within
an iteration, kept until the next iteration is saved. Checkpoints contain no pickles.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import CheckpointError
from rl4dialog.core.files import json_object
from rl4dialog.core.manifest import read_manifest, write_manifest
from rl4dialog.functional.distributed import all_gather_object
from rl4dialog.runs.run_folder import CHECKPOINTS_FOLDER, RunFolder

_logger = logging.getLogger(__name__)
_STATE_FILE = "state.json"
_FOLDER_NAME = re.compile(r"iteration_([0-9]+)")
_UNFINISHED = f"{CHECKPOINTS_FOLDER}/unfinished_iteration"
_BEST_FILE = "best.json"


@dataclass
class Checkpoint:
    """A valid checkpoint on disk.

    Attributes:
        path: Its folder.
        state: Contents of ``state.json``.
    """

    path: Path
    state: dict[str, Any]

    @property
    def iteration(self) -> int:
        """Number of finished iterations when it was written."""
        return int(self.state["iteration"])

    @property
    def is_unfinished(self) -> bool:
        """Whether it was written within the iteration after these."""
        return bool(self.state.get("is_unfinished"))


class CheckpointStore:
    """The checkpoints of a run.

    Args:
        run_folder: The run's folder; ``None`` in a process that does not write.
        keep_last: Number of most recent checkpoints to keep, in addition to the best one.
    """

    def __init__(self, run_folder: RunFolder | None, keep_last: int = 2) -> None:
        self._run_folder, self._keep_last = run_folder, keep_last

    def has(self, iteration: int) -> bool:
        """Whether there is a checkpoint of that iteration. All processes must call this."""
        return bool(
            all_gather_object(self._run_folder is not None and self._run_folder.path(_name(iteration)).is_dir())[0]
        )

    def save(self, state: Mapping[str, Any], save_tensors: Callable[[Path | None], None]) -> None:
        """Write a checkpoint, then remove outdated ones. All processes must call this.

        Args:
            state: JSON values, including ``iteration`` and, within the next one, a true ``is_unfinished``.
            save_tensors: Writes the tensors to a folder; called with ``None`` in a process that does not write.

        Raises:
            RunFolderError: If it cannot be written. Earlier checkpoints are left unchanged.
        """
        if self._run_folder is None:
            save_tensors(None)
            return
        is_unfinished = state.get("is_unfinished", False)
        with self._run_folder.replacing_folder(_UNFINISHED if is_unfinished else _name(state["iteration"])) as folder:
            save_tensors(folder)
            (folder / _STATE_FILE).write_text(json.dumps(state), encoding="utf-8")
            write_manifest(folder)
        if not is_unfinished:
            shutil.rmtree(self._run_folder.path(_UNFINISHED), ignore_errors=True)
        self._remove_old()

    @property
    def best(self) -> dict[str, Any] | None:
        """``{"iteration", "metric", "value"}`` of the best checkpoint, if one is marked and exists."""
        assert self._run_folder is not None
        return best_checkpoint(self._run_folder.root)

    def mark_best(self, iteration: int, metric: str, value: float) -> None:
        """Protect a checkpoint from removal, instead of the one marked before."""
        assert self._run_folder is not None
        self._run_folder.write_json(
            f"{CHECKPOINTS_FOLDER}/{_BEST_FILE}", {"iteration": iteration, "metric": metric, "value": value}
        )
        self._remove_old()

    def _remove_old(self) -> None:
        assert self._run_folder is not None
        found = checkpoint_folders(self._run_folder.root)
        best = self.best
        for iteration in list(found)[: -self._keep_last]:
            if best is None or iteration != best["iteration"]:
                shutil.rmtree(found[iteration], ignore_errors=True)


def describe(state: Mapping[str, Any]) -> str:
    """When a state was captured: ``after iteration 2``, or ``within iteration 3``."""
    iteration = int(state["iteration"])
    return f"within iteration {iteration + 1}" if state.get("is_unfinished") else f"after iteration {iteration}"


def checkpoint_folders(root: Path) -> dict[int, Path]:
    """Folders of a run's checkpoints by iteration, oldest first. Damaged ones are included."""
    named = ((_FOLDER_NAME.fullmatch(path.name), path) for path in (root / CHECKPOINTS_FOLDER).glob("iteration_*"))
    return dict(sorted((int(name[1]), path) for name, path in named if name and path.is_dir()))


def newest_folders(root: Path) -> list[Path]:
    """Folders of a run's checkpoints, latest first. Damaged ones are included."""
    unfinished = [path for path in (root / _UNFINISHED,) if path.is_dir()]  # removed when a later one is saved
    return [*unfinished, *reversed(checkpoint_folders(root).values())]


def newest_checkpoint(root: Path) -> Checkpoint | None:
    """Return the latest valid checkpoint of a run. Damaged ones are skipped with a warning."""
    for path in newest_folders(root):
        try:
            return read_checkpoint(path)
        except CheckpointError as error:
            _logger.warning("%s; it is skipped", error)
    return None


def best_checkpoint(root: Path) -> dict[str, Any] | None:
    """Return the record of :meth:`CheckpointStore.mark_best`, if that checkpoint exists."""
    try:
        best: dict[str, Any] = json_object((root / CHECKPOINTS_FOLDER / _BEST_FILE).read_text(encoding="utf-8"))
        return best if (root / _name(best["iteration"])).is_dir() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint from its folder.

    Raises:
        CheckpointError: If it is damaged.
    """
    try:
        read_manifest(path)
        return Checkpoint(path, json_object((path / _STATE_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {path} is damaged: {error}") from error


def remove_checkpoints_after(root: Path, checkpoint: Checkpoint) -> None:
    """Remove later checkpoints, including damaged ones, when a run returns to an earlier one."""
    for found, path in checkpoint_folders(root).items():
        if found > checkpoint.iteration:
            shutil.rmtree(path, ignore_errors=True)
    if not checkpoint.is_unfinished:
        shutil.rmtree(root / _UNFINISHED, ignore_errors=True)


def _name(iteration: int) -> str:
    return f"{CHECKPOINTS_FOLDER}/iteration_{iteration:06d}"
