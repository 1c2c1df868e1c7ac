"""Records of a run, and their copies in other formats."""

import csv
import json
import logging
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from experiment_trackers import FakeTracker
from stable_baselines3.common import logger as sb3_logger
from tiny import make_gpt2, make_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl4dialog.runs.run_folder import RunFolder
from rl4dialog.runs.tracking import Tracker


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path, "project", "run")


@pytest.fixture
def tracker(folder):
    tracker = Tracker(folder, {"seed": 1, "reward": float("nan")}, "project", "run")
    yield tracker
    tracker.close()


def read_lines(folder, name):
    return [json.loads(line) for line in folder.path(name).read_text(encoding="utf-8").splitlines()]


def test_files_have_rl4lms_names_and_forms(folder, tracker):
    assert json.loads(folder.path("config.json").read_text()) == {"format": 2, "seed": 1, "reward": None}
    for iteration in (1, 2):
        tracker.log_rollout_infos({"iteration": iteration, "rollout/kl": torch.tensor(0.5)})
        tracker.log_training_infos({"iteration": iteration, "train/loss": 0.25})
    assert read_lines(folder, "rollout_info.jsonl") == [{"iteration": i, "rollout/kl": 0.5} for i in (1, 2)]
    assert [line["iteration"] for line in read_lines(folder, "training_info.jsonl")] == [1, 2]
    for epoch, split, score in ((0, "val", 0.1), (5, "val", 0.2), (5, "test", 0.3)):
        tracker.log_metrics(epoch, split, {"lexical/meteor": score})
    assert read_lines(folder, "val_split_metrics.jsonl") == [
        {"epoch": epoch, "metrics": {"lexical/meteor": score}} for epoch, score in ((0, 0.1), (5, 0.2))
    ]
    assert read_lines(folder, "test_split_metrics.jsonl") == [{"epoch": 5, "metrics": {"lexical/meteor": 0.3}}]
    predictions = [{"sample_id": 3, "generated_text": "¿qué?"}]
    tracker.log_predictions(7, "test", predictions)
    assert json.loads(folder.path("epoch_7_test_split_predictions.json").read_text(encoding="utf-8")) == predictions


def test_log_file_has_what_the_toolkit_logs_until_closed(folder):
    logger = logging.getLogger("rl4dialog")
    before = logger.level, list(logger.handlers)
    tracker = Tracker(folder, {}, "p", "r")
    logger.info("first")
    logging.getLogger("rl4dialog.data").warning("second")
    logging.getLogger("other").warning("foreign")
    tracker.close()
    tracker.close()
    assert (logger.level, logger.handlers) == before
    logger.warning("too late")
    text = folder.path("log.txt").read_text()
    assert "first" in text and "second" in text
    assert "foreign" not in text and "too late" not in text


def test_saved_model_loads_and_gives_the_same_logits(folder, tracker):
    tokenizer = make_tokenizer()
    model = make_gpt2(tokenizer)
    path = tracker.save_auto_model(model, tokenizer)
    assert path == folder.path("model")
    assert (path / "model.safetensors").is_file()
    assert not list(path.glob("*.bin"))
    loaded = AutoModelForCausalLM.from_pretrained(path).eval()
    ids = AutoTokenizer.from_pretrained(path)("w1 w2 3", return_tensors="pt")["input_ids"]
    assert ids.tolist() == tokenizer("w1 w2 3", return_tensors="pt")["input_ids"].tolist()
    assert torch.equal(loaded(ids).logits, model(ids).logits)


def test_result_marks_the_run_as_complete_and_copies_get_it_with_the_report(folder, monkeypatch):
    fake = FakeTracker.install(monkeypatch)
    tracker = Tracker(folder, {"seed": 1}, "p", "r", outputs=["trackio"])
    folder.path("report.html").write_text("<p>")
    tracker.log_result(2, {"val": {"a": 0.1}}, {"val": {"a": float("nan")}})
    assert json.loads(folder.path("result.json").read_text())["iterations"] == 2
    assert fake.calls == [
        ("summary", {"result/val/before/a": 0.1, "result/val/after/a": None}, 2),
        ("report", folder.path("report.html")),
    ]
    tracker.close(exit_code=1)
    tracker.close()
    assert fake.calls[2:] == [("finish", True)]


def test_copies_get_what_the_files_get(folder, monkeypatch):
    fake = FakeTracker.install(monkeypatch)
    tracker = Tracker(folder, {"seed": 1}, "p", "r", outputs=["trackio"], run_ids={"trackio": "r-1"})
    assert fake.about.run_id == "r-1" and tracker.run_ids == {"trackio": "fake"}
    tracker.log_rollout_infos({"iteration": 3, "rollout/kl": torch.tensor(0.5)})
    tracker.log_training_infos({"iteration": 3, "train/loss": 0.25})
    tracker.log_metrics(3, "val", {"a": 1.0})
    tracker.log_predictions(3, "val", [{"sample_id": 1}])
    tracker.close()
    assert fake.calls == [
        ("log", {"rollout/kl": 0.5}, "iteration", 3),
        ("log", {"train/loss": 0.25}, "iteration", 3),
        ("log", {"val/a": 1.0}, "epoch", 3),
        ("predictions", "val", 3, folder.path("epoch_3_val_split_predictions.json")),
        ("finish", False),
    ]


@pytest.fixture(autouse=True)
def _tensorboard(monkeypatch):
    """TensorBoard's writer, as far as stable-baselines3 uses it."""

    def writer(log_dir):
        Path(log_dir).mkdir(parents=True, exist_ok=True)
        path = Path(log_dir) / "events"
        path.touch()

        def add(key, value, step):
            path.write_text(path.read_text() + f"{step} {key} {value}\n")

        return MagicMock(add_scalar=add, add_text=add)

    monkeypatch.setattr(sb3_logger, "SummaryWriter", writer)


OUTPUTS = ["csv", "json", "tensorboard", "stdout"]


def open_tracker(tmp_path, outputs=OUTPUTS, resume=False):
    tracker = Tracker(RunFolder(tmp_path, "p", "e", resume=resume), {}, "p", "e", resume=resume, outputs=outputs)
    if resume:
        tracker.open()
    return tracker


def log_iteration(tracker, n):
    rollout = {"rollout/tokens": 30 + n, "rollout/task_reward": 0.1 * n, "time/generate_s": 1.5, "my/note": "a, b"}
    tracker.log_rollout_infos({"iteration": n, **rollout, **({"rollout/new": 1.0} if n == 2 else {})})
    tracker.log_training_infos({"iteration": n, "train/loss": float("nan") if n == 1 else 0.5, "memory/peak_mib": 9})
    if n % 2 == 0:
        tracker.log_metrics(n, "val", {"lexical/meteor": 0.2 * n})


def begin(tracker):
    for split in ("val", "test"):
        tracker.log_metrics(0, split, {"lexical/meteor": 0.1})


def csv_rows(tmp_path):
    with open(tmp_path / "p" / "e" / "progress.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_per_iteration_against_agent_tokens(tmp_path):
    tracker = open_tracker(tmp_path)
    begin(tracker)
    for n in (1, 2):
        log_iteration(tracker, n)
    tracker.log_metrics(2, "test", {"lexical/meteor": 0.5})
    tracker.close()
    rows = csv_rows(tmp_path)
    assert [row["time/iterations"] for row in rows] == ["0", "1", "2"]
    assert [row["time/total_timesteps"] for row in rows] == ["0", "31", "63"]
    assert [row["eval/val/lexical/meteor"] for row in rows] == ["0.1", "", "0.4"]
    assert [row["train/loss"] for row in rows] == ["", "", "0.5"], "what is no number is left out"
    assert rows[2]["eval/test/lexical/meteor"] == "0.5" and rows[1]["my/note"] == "a, b"
    assert "iteration" not in rows[1] and "train/iteration" not in rows[1]
    text = (tmp_path / "p" / "e" / "progress.json").read_text()
    assert [json.loads(line)["time/total_timesteps"] for line in text.splitlines()] == [0, 31, 63]
    events = (tmp_path / "p" / "e" / "tensorboard" / "events").read_text().splitlines()
    assert "31 rollout/task_reward 0.1" in events and "0 eval/test/lexical/meteor 0.1" in events


def test_replay_gives_the_files_of_a_run_that_was_not_interrupted(tmp_path):
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    tracker = open_tracker(whole)
    begin(tracker)
    for n in (1, 2, 3):
        log_iteration(tracker, n)
    tracker.close()
    tracker = open_tracker(parted)
    begin(tracker)
    for n in (1, 2):
        log_iteration(tracker, n)
    sizes = tracker.run_folder.log_sizes()
    log_iteration(tracker, 3)
    tracker.close()
    RunFolder(parted, "p", "e", resume=True).cut_back(sizes, 2)
    tracker = open_tracker(parted, resume=True)
    log_iteration(tracker, 3)
    tracker.close()
    for name in ("progress.csv", "progress.json", "tensorboard/events"):
        assert (parted / "p" / "e" / name).read_text() == (whole / "p" / "e" / name).read_text(), name


def test_console_shows_what_is_new_and_nothing_again_after_a_resume(tmp_path, capsys):
    tracker = open_tracker(tmp_path, ["stdout"])
    log_iteration(tracker, 1)
    assert capsys.readouterr().out == ""
    tracker.show()
    tracker.show()
    table = capsys.readouterr().out
    assert table.count("task_reward") == 1 and "|    total_timesteps | 31" in table
    tracker.log_metrics(1, "test", {"lexical/meteor": 0.5})
    tracker.close()
    table = capsys.readouterr().out
    assert "test/lexical/meteor" in table and "task_reward" not in table
    open_tracker(tmp_path, ["stdout"], resume=True).close()
    assert capsys.readouterr().out == ""


def test_supervised_run_has_the_iterations_0_and_1(tmp_path):
    tracker = open_tracker(tmp_path, ["csv"])
    begin(tracker)
    tracker.log_training_infos({"iteration": 1, "train_loss": 0.5, "n_steps": 4})
    tracker.log_metrics(1, "test", {"lexical/meteor": 0.5})
    tracker.close()
    rows = csv_rows(tmp_path)
    assert [row["time/iterations"] for row in rows] == ["0", "1"]
    assert rows[1]["train/train_loss"] == "0.5" and rows[1]["eval/test/lexical/meteor"] == "0.5"


def test_output_that_fails_is_left_out_with_a_warning(tmp_path, caplog):
    tracker = open_tracker(tmp_path, ["csv", "json"])
    tracker._run_logger._files["json"].close()  # as bad as a full disk
    for n in (1, 2, 3):
        log_iteration(tracker, n)
    tracker.close()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "the output json failed and is disabled" in warning
    assert len(tracker.run_folder.read_jsonl("rollout_info.jsonl")) == len(csv_rows(tmp_path)) == 3
