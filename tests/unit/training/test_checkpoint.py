"""Folders of checkpoints, and resuming from them."""

import os

import pytest
from run_files import write_json
from runs import make_config, supervised

from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import CheckpointError, ConfigError, RunFolderError
from rl4dialog.core.files import write_manifest
from rl4dialog.inference.loading import find_checkpoint
from rl4dialog.runs.run_folder import RunFolder
from rl4dialog.training.checkpoint import (
    Checkpoint,
    CheckpointStore,
    checkpoint_folders,
    find_run,
    go_back_to,
    is_done,
    newest_checkpoint,
)

STRAY = ["iteration_000020_backup", "iteration_best", "iteration_000030.old"]


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path, "p", "e")
    for name in ("iteration_000010", "iteration_999999", "iteration_1000000", "iteration_000020", *STRAY):
        folder.path(f"checkpoints/{name}").mkdir(parents=True)
    return folder


def test_checkpoints_are_in_the_order_of_their_iterations(folder):
    assert list(checkpoint_folders(folder.root)) == [10, 20, 999_999, 1_000_000]
    assert list(checkpoint_folders(folder.root / "nowhere")) == []


def test_folders_of_other_names_are_neither_counted_nor_removed(tmp_path, folder):
    CheckpointStore(folder, keep_last=3).mark_best(10, "m", 1.0)
    assert list(checkpoint_folders(folder.root)) == [10, 20, 999_999, 1_000_000]
    CheckpointStore(folder, keep_last=1).mark_best(20, "m", 2.0)
    assert list(checkpoint_folders(folder.root)) == [20, 1_000_000]
    folder.path("checkpoints/unfinished_iteration").mkdir()
    state = {"iteration": 20, "is_unfinished": True, "log_sizes": {}}
    go_back_to(Checkpoint(tmp_path, state), folder)
    assert os.listdir(folder.path("checkpoints/unfinished_iteration")) == []
    assert list(checkpoint_folders(folder.root)) == [20]
    go_back_to(Checkpoint(tmp_path, {"iteration": 10, "log_sizes": {}}), folder)
    assert not folder.path("checkpoints/unfinished_iteration").exists()
    assert sorted(path.name for path in folder.path("checkpoints").glob("iteration_*")) == sorted(STRAY)


def test_checkpoint_that_is_not_there_is_told_with_those_that_are(folder):
    with pytest.raises(RunFolderError, match=r"no checkpoint '30' .*iterations: 10, 20, 999999, 1000000"):
        find_checkpoint(folder.root, "30")


def config_of(tmp_path, **overrides):
    return parse_config(make_config(tmp_path, **overrides), "test")


def complete_run(tmp_path, **overrides):
    """A run of two iterations that kept no checkpoint."""
    root = tmp_path / "run"
    root.mkdir()
    write_json(root / "config.json", config_of(tmp_path, **overrides).model_dump(mode="json"))
    write_json(root / "result.json", {"iterations": 2})
    return root


@pytest.mark.parametrize("mode", ["always", "auto", None])
def test_run_without_a_checkpoint_is_begun_anew_only_if_little_is_lost(tmp_path, mode):
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


def test_complete_run_of_another_config_is_told(tmp_path):
    root = complete_run(tmp_path)
    assert is_done(root, config_of(tmp_path, logging__outputs=["csv"]))
    assert not is_done(root, config_of(tmp_path, train_evaluation__n_iters=3))
    with pytest.raises(ConfigError, match=r"alg\.args\.learning_rate was 0\.0001 and is now 0\.5"):
        is_done(root, config_of(tmp_path, alg__args__learning_rate=0.5))


def test_supervised_run_is_as_long_as_its_training_arguments_say(tmp_path):
    root = complete_run(tmp_path, alg=supervised())
    assert is_done(root, config_of(tmp_path, alg=supervised(), train_evaluation__n_iters=3))


def test_what_a_process_saved_is_for_as_many_processes(tmp_path):
    checkpoint = Checkpoint(tmp_path, {"one": ["a"], "two": ["a", "b"]})
    assert checkpoint.of_process("one") == "a"
    with pytest.raises(CheckpointError, match="was written by 2 processes, but this run has 1; start the run with 2"):
        checkpoint.of_process("two")


@pytest.mark.parametrize("damaged", ["{}", '{"iteration": "3"}', '{"iteration": null}', '{"iteration": -1}', "[]"])
def test_a_checkpoint_whose_state_has_no_iteration_is_skipped_as_damaged(damaged, tmp_path, caplog):
    for number, state in ((1, '{"iteration": 1}'), (2, damaged)):
        path = tmp_path / "checkpoints" / f"iteration_{number:06d}"
        path.mkdir(parents=True)
        (path / "state.json").write_text(state)
        write_manifest(path)
    assert newest_checkpoint(tmp_path).iteration == 1
    assert "iteration_000002 is damaged" in caplog.text
