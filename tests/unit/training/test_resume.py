"""Which runs are gone on with, and which are left as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_files import write_json
from runs import make_config

from rl4dialog.core.config import RunConfig, parse_config
from rl4dialog.core.errors import CheckpointError
from rl4dialog.training.resume import find_run


def config_of(tmp_path: Path, **overrides: Any) -> RunConfig:
    return parse_config(make_config(tmp_path, **overrides), "test")


def complete_run(tmp_path: Path, **overrides: Any) -> Path:
    """A run of two iterations that kept no checkpoint."""
    root = tmp_path / "run"
    root.mkdir()
    write_json(root / "config.json", config_of(tmp_path, **overrides).model_dump(mode="json"))
    write_json(root / "result.json", {"iterations": 2})
    return root


@pytest.mark.parametrize("mode", ["always", "auto"])
def test_complete_run_without_a_checkpoint_is_not_begun_anew(tmp_path: Path, mode: str) -> None:
    root = complete_run(tmp_path)
    more = config_of(tmp_path, train_evaluation__n_iters=3)
    with pytest.raises(CheckpointError, match="no whole checkpoint to go on from"):
        find_run(root, more, mode)
    (root / "result.json").unlink()
    if mode == "auto":
        assert find_run(root, more, mode) is None
