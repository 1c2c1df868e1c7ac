"""Which runs are gone on with, and which are left as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_files import write_json
from runs import make_config

from rl4dialog.core.config import RunConfig, parse_config
from rl4dialog.core.errors import CheckpointError, ConfigError
from rl4dialog.training.resume import find_run, is_done


def config_of(tmp_path: Path, **overrides: Any) -> RunConfig:
    return parse_config(make_config(tmp_path, **overrides), "test")


def complete_run(tmp_path: Path, **overrides: Any) -> Path:
    """A run of two iterations that kept no checkpoint."""
    root = tmp_path / "run"
    root.mkdir()
    write_json(root / "config.json", config_of(tmp_path, **overrides).model_dump(mode="json"))
    write_json(root / "result.json", {"iterations": 2})
    return root


@pytest.mark.parametrize("mode", ["always", "auto", None])
def test_run_without_a_checkpoint_is_begun_anew_only_if_little_is_lost(tmp_path: Path, mode: str | None) -> None:
    root = complete_run(tmp_path)
    more = config_of(tmp_path, train_evaluation__n_iters=3)
    with pytest.raises(CheckpointError, match="no valid checkpoint to resume from"):
        find_run(root, more, mode)
    (root / "result.json").unlink()
    if mode != "always":
        assert find_run(root, more, mode) is None
        assert find_run(root, config_of(tmp_path, seed=7), mode) is None
    for trace in ("training_info.jsonl", "epoch_1_val_split_predictions.json"):
        (root / trace).write_text("")
        if mode == "auto":
            assert find_run(root, more, mode) is None
        else:
            with pytest.raises(CheckpointError, match=r"no valid checkpoint.*--overwrite instead of --resume"):
                find_run(root, more, mode)
        (root / trace).unlink()


def test_complete_run_of_another_config_is_told(tmp_path: Path) -> None:
    root = complete_run(tmp_path)
    assert is_done(root, config_of(tmp_path, logging__outputs=["csv"]))
    assert not is_done(root, config_of(tmp_path, train_evaluation__n_iters=3))
    with pytest.raises(ConfigError, match=r"alg\.args\.learning_rate was 0\.0001 and is now 0\.5"):
        is_done(root, config_of(tmp_path, alg__args__learning_rate=0.5))


def test_run_that_says_subproc_goes_on_with_a_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As an earlier version wrote it, where that was the name of what is now blocks."""
    root = complete_run(tmp_path, env__vec_env="subproc", env__n_workers=2, env__on_worker_death="restart")
    for kind in ("subproc", "blocks"):
        caplog.clear()
        assert is_done(root, config_of(tmp_path, env__vec_env=kind))
        assert ("SubprocVecEnv" in caplog.text) == (kind == "blocks"), "a config that says it has its own note"


def test_supervised_run_is_as_long_as_its_training_arguments_say(tmp_path: Path) -> None:
    supervised = {
        "alg": {"id": "supervised", "model_type": "causal", "model_name": "builtin/tiny-gpt2", "training_args": {}}
    }
    root = complete_run(tmp_path, **supervised)
    assert is_done(root, config_of(tmp_path, **supervised, train_evaluation__n_iters=3))
