"""Which folders are a run's checkpoints, and which of them are removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rl4dialog.core.errors import RunFolderError
from rl4dialog.inference.saved_run import find_checkpoint
from rl4dialog.runs.run_folder import RunFolder
from rl4dialog.training.checkpoint import Checkpoint, CheckpointStore, checkpoint_folders, remove_checkpoints_after

STRAY = ["iteration_000020_backup", "iteration_best", "iteration_000030.old"]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path, "p", "e")
    for name in ("iteration_000010", "iteration_999999", "iteration_1000000", "iteration_000020", *STRAY):
        folder.path(f"checkpoints/{name}").mkdir(parents=True)
    return folder


def test_checkpoints_are_in_the_order_of_their_iterations(folder: RunFolder) -> None:
    assert list(checkpoint_folders(folder.root)) == [10, 20, 999_999, 1_000_000]
    assert list(checkpoint_folders(folder.root / "nowhere")) == []


def test_folders_of_other_names_are_neither_counted_nor_removed(tmp_path: Path, folder: RunFolder) -> None:
    CheckpointStore(folder, keep_last=3).mark_best(10, "m", 1.0)
    assert list(checkpoint_folders(folder.root)) == [10, 20, 999_999, 1_000_000]
    CheckpointStore(folder, keep_last=1).mark_best(20, "m", 2.0)
    assert list(checkpoint_folders(folder.root)) == [20, 1_000_000]
    folder.path("checkpoints/unfinished_iteration").mkdir()
    remove_checkpoints_after(folder.root, Checkpoint(tmp_path, {"iteration": 20, "is_unfinished": True}))
    assert os.listdir(folder.path("checkpoints/unfinished_iteration")) == []
    assert list(checkpoint_folders(folder.root)) == [20]
    remove_checkpoints_after(folder.root, Checkpoint(tmp_path, {"iteration": 10}))
    assert not folder.path("checkpoints/unfinished_iteration").exists()
    assert sorted(path.name for path in folder.path("checkpoints").glob("iteration_*")) == sorted(STRAY)


def test_checkpoint_that_is_not_there_is_told_with_those_that_are(folder: RunFolder) -> None:
    with pytest.raises(RunFolderError, match=r"no checkpoint '30' .*iterations: 10, 20, 999999, 1000000"):
        find_checkpoint(folder.root, "30")
