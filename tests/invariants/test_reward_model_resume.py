"""A reward model run that is resumed is the run that was never stopped, bit by bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from reward_models import make_config
from runs import assert_same_run, run_folder, train

ENSEMBLE: dict[str, Any] = {
    "datapool": {"id": "feedback", "args": {"dataset": "small_talk", "context_size": 1, "max_size": 24}},
    "alg": {**make_config()["alg"], "ensemble": 2, "center_coef": 0.01},
}


@pytest.mark.parametrize("overrides", [{}, ENSEMBLE])
def test_resumed_run_is_the_same(tmp_path: Path, overrides: dict[str, Any]) -> None:
    config = make_config(**overrides)
    whole, other = tmp_path / "whole", tmp_path / "other"
    for folder in (whole, other):
        folder.mkdir()
    assert train(whole, config) == 0
    shutil.copytree(whole / "runs", other / "runs")
    for number in (2, 3):
        shutil.rmtree(run_folder(other) / "checkpoints" / f"iteration_{number:06d}")
    (run_folder(other) / "result.json").unlink()
    assert train(other, config, "--resume") == 0
    assert_same_run(run_folder(whole), run_folder(other))
