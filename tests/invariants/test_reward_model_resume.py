"""A reward model run that is resumed is the run that was never stopped, bit by bit."""

from __future__ import annotations

import shutil
from pathlib import Path

from reward_models import make_config
from runs import assert_same_run, run_folder, train


def test_resumed_run_is_the_same(tmp_path: Path) -> None:
    whole, other = tmp_path / "whole", tmp_path / "other"
    for folder in (whole, other):
        folder.mkdir()
    assert train(whole, make_config()) == 0
    shutil.copytree(whole / "runs", other / "runs")
    for number in (2, 3):
        shutil.rmtree(run_folder(other) / "checkpoints" / f"iteration_{number:06d}")
    (run_folder(other) / "result.json").unlink()
    assert train(other, make_config(), "--resume") == 0
    assert_same_run(run_folder(whole), run_folder(other))
