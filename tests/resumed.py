"""Runs that are resumed, beside the same runs that were never stopped."""

import shutil

from runs import assert_same_run, run_folder, train


def assert_resumed_is_whole(tmp_path, config):
    """Train a run, and resume a copy as if it had been killed, later than the first checkpoint but before the next."""
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert train(whole, config) == 0
    shutil.copytree(whole, resumed, dirs_exist_ok=True)
    (run_folder(resumed) / "result.json").unlink()  # which is written last
    for path in sorted((run_folder(resumed) / "checkpoints").iterdir())[1:]:
        shutil.rmtree(path)
    assert train(resumed, config, "--resume") == 0
    assert_same_run(run_folder(whole), run_folder(resumed))


def assert_two_parts_are_the_whole(tmp_path, config, n_iters):
    """The first has so many iterations, and the second is a resume with more."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    short = {**config, "train_evaluation": {**config["train_evaluation"], "n_iters": n_iters}}
    assert train(whole, config) == 0
    assert train(parts, short) == 0
    assert train(parts, config, "--resume") == 0
    assert_same_run(run_folder(whole), run_folder(parts))
