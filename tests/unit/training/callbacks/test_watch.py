"""Warnings of real runs: where they go, and that a run which is continued repeats none."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runs import make_config, run_folder, train

from rl4dialog.core.errors import RunFolderError
from rl4dialog.runs.run_folder import WARNINGS_FILE, RunFolder
from rl4dialog.training.callbacks.watch import WatchCallback
from rl4dialog.training.watch.check import RunFacts
from rl4dialog.training.watch.learning import already_best

CONSTANT = '''
from rl4dialog import RewardFunctionRegistry

@RewardFunctionRegistry.register("constant")
def constant(prompt_text, gen_text, ref_texts, meta_info):
    """Pays the same for every reply."""
    return 0.5
'''


def warnings_in(folder: Path) -> list[dict[str, Any]]:
    path = folder / WARNINGS_FILE
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def test_run_with_a_constant_reward_is_warned_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(CONSTANT)
    config = make_config(
        tmp_path, imports=["./mine.py"], reward_fn={"id": "constant"}, env__n_envs=12, train_evaluation__n_iters=4
    )
    assert train(tmp_path, config) == 0
    (warning,) = warnings_in(run_folder(tmp_path))
    assert warning["iteration"] == 3 and warning["name"] == "reward_constant"
    assert warning["message"] == "every episode of the last 3 iterations earned 0.5"
    log = (run_folder(tmp_path) / "log.txt").read_text(encoding="utf-8")
    assert f"iteration 3: {warning['message']} (reward_constant). {warning['advice']}" in log
    assert "1 warning (reward_constant), with advice, in " in capsys.readouterr().out


def test_model_at_the_highest_reward_is_reported_before_training(tmp_path: Path) -> None:
    (tmp_path / "paying.py").write_text(CONSTANT)
    config = make_config(tmp_path, imports=["./paying.py"], reward_fn={"id": "constant"})
    config["datapool"] = {"id": "small_talk", "args": {"max_size": 400}}
    config["train_evaluation"] |= {"n_iters": 0, "max_eval_samples": 40, "metrics": []}
    assert train(tmp_path, config) == 0
    (warning,) = warnings_in(run_folder(tmp_path))
    assert (warning["iteration"], warning["name"]) == (0, "reward_at_best")
    assert warning["message"] == "40 of 40 replies already earn the highest reward of all, 0.5"


@pytest.mark.parametrize(
    ("rewards", "is_best"),
    [
        ([1.0] * 31, False),  # too few
        ([1.0] * 32, True),
        ([0.0] * 32, False),  # nothing was ever earned
        ([2.0] * 36 + [0.0] * 4, True),
        ([2.0] * 35 + [0.0] * 5, False),
        ([0.0] * 36 + [-1.0] * 4, True),
        ([1.0] * 32 + [math.nan] * 32, True),
    ],
)
def test_replies_are_at_the_highest_reward_if_hardly_any_could_earn_more(rewards: list[float], is_best: bool) -> None:
    assert bool(already_best(rewards)) is is_best


def test_run_without_trouble_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(tmp_path, make_config(tmp_path)) == 0
    assert warnings_in(run_folder(tmp_path)) == []
    assert "warning" not in capsys.readouterr().out
    logged = (run_folder(tmp_path) / "training_info.jsonl").read_text(encoding="utf-8").splitlines()
    assert abs(json.loads(logged[0])["train/first_approx_kl"]) < 1e-6


def continued(folder: RunFolder, n_logged: int) -> WatchCallback:
    """A callback at the start of a run that has been trained for some iterations."""
    for i in range(1, n_logged + 1):
        folder.append_jsonl("rollout_info.jsonl", {"iteration": i, "rollout/kl": 0.01})
        folder.append_jsonl("training_info.jsonl", {"iteration": i, "train/skipped_steps": int(i >= 2)})
    callback = WatchCallback(RunFacts(), folder)
    logger = SimpleNamespace(name_to_value={"train/skipped_steps": 1})
    callback.model = SimpleNamespace(iteration=n_logged + 1, logger=logger)
    callback._on_training_start()
    return callback


def test_continued_run_goes_on_from_what_was_seen(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "p", "e")
    folder.append_jsonl(WARNINGS_FILE, {"iteration": 2, "name": "gradient_not_finite", "message": "a", "advice": "b"})
    callback = continued(folder, 4)
    callback._on_rollout_end()
    callback._on_rollout_start()
    assert [warning["iteration"] for warning in warnings_in(folder.root)] == [2], "it has been told"


def test_line_separators_in_records_end_no_line(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "p", "e")
    warning = {"iteration": 2, "name": "gradient_not_finite", "message": "a\u2028b", "advice": "c"}
    folder.append_jsonl(WARNINGS_FILE, warning)
    summary = continued(folder, 2).summary
    assert summary is not None and summary.startswith("1 warning")


def test_file_that_is_no_jsonl_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "p", "e")
    folder.path(WARNINGS_FILE).write_text("half a li", encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"warnings\.jsonl cannot be read"):
        continued(folder, 2)


def test_warning_that_was_cut_off_with_the_file_is_told_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "p", "e")
    callback = continued(folder, 4)
    assert [warning["iteration"] for warning in warnings_in(folder.root)] == [2]
    assert callback.summary is not None and callback.summary.startswith("1 warning (gradient_not_finite)")


def test_warning_stands_above_the_progress_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tqdm import tqdm

    console = logging.StreamHandler()
    logging.root.addHandler(console)
    try:
        with tqdm(total=3) as bar:
            bar.update(1)
            continued(RunFolder(tmp_path, "p", "e"), 3)
            bar.update(1)
    finally:
        logging.root.removeHandler(console)
    lines = capsys.readouterr().err.replace("\r", "\n").splitlines()
    (line,) = [line for line in lines if "gradient" in line]
    assert line.startswith("iteration 2: ") and "it/s" not in line
