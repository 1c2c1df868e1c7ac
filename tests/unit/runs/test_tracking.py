"""The files of a run, and what copies of them get."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from experiment_trackers import FakeTracker
from tiny import make_gpt2, make_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl4dialog.runs.run_folder import RunFolder
from rl4dialog.runs.tracking import Tracker


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path, "project", "run")


@pytest.fixture
def tracker(folder: RunFolder) -> Iterator[Tracker]:
    tracker = Tracker(folder, {"seed": 1, "reward": float("nan")}, "project", "run")
    yield tracker
    tracker.close()


def read_lines(folder: RunFolder, name: str) -> list[Any]:
    return [json.loads(line) for line in folder.path(name).read_text(encoding="utf-8").splitlines()]


def test_config_is_written_at_once(folder: RunFolder, tracker: Tracker) -> None:
    assert json.loads(folder.path("config.json").read_text()) == {"seed": 1, "reward": None}


def test_rollout_and_training_infos_are_appended(folder: RunFolder, tracker: Tracker) -> None:
    for iteration in (1, 2):
        tracker.log_rollout_infos({"iteration": iteration, "rollout/kl": torch.tensor(0.5)})
        tracker.log_training_infos({"iteration": iteration, "train/loss": 0.25})
    assert read_lines(folder, "rollout_info.jsonl") == [
        {"iteration": 1, "rollout/kl": 0.5},
        {"iteration": 2, "rollout/kl": 0.5},
    ]
    assert [line["iteration"] for line in read_lines(folder, "training_info.jsonl")] == [1, 2]


def test_metrics_have_rl4lms_form(folder: RunFolder, tracker: Tracker) -> None:
    tracker.log_metrics(0, "val", {"lexical/meteor": 0.1})
    tracker.log_metrics(5, "val", {"lexical/meteor": 0.2})
    tracker.log_metrics(5, "test", {"lexical/meteor": 0.3})
    assert read_lines(folder, "val_split_metrics.jsonl") == [
        {"epoch": 0, "metrics": {"lexical/meteor": 0.1}},
        {"epoch": 5, "metrics": {"lexical/meteor": 0.2}},
    ]
    assert read_lines(folder, "test_split_metrics.jsonl") == [{"epoch": 5, "metrics": {"lexical/meteor": 0.3}}]


def test_predictions_have_rl4lms_name(folder: RunFolder, tracker: Tracker) -> None:
    predictions = [{"sample_id": 3, "generated_text": "¿qué?"}]
    tracker.log_predictions(7, "test", predictions)
    path = folder.path("epoch_7_test_split_predictions.json")
    assert json.loads(path.read_text(encoding="utf-8")) == predictions


def test_log_file_has_what_the_toolkit_logs_until_closed(folder: RunFolder, tracker: Tracker) -> None:
    tracker.log_info("first")
    logging.getLogger("rl4dialog.data").warning("second")
    logging.getLogger("other").warning("foreign")
    tracker.close()
    tracker.close()
    logging.getLogger("rl4dialog").warning("too late")
    text = folder.path("log.txt").read_text()
    assert "first" in text and "second" in text
    assert "foreign" not in text and "too late" not in text


def test_close_leaves_the_logger_as_it_was(folder: RunFolder) -> None:
    logger = logging.getLogger("rl4dialog")
    before = (logger.level, list(logger.handlers))
    tracker = Tracker(folder, {}, "p", "r")
    assert (logger.level, logger.handlers) != before
    tracker.close()
    assert (logger.level, logger.handlers) == before


def test_saved_model_loads_and_gives_the_same_logits(folder: RunFolder, tracker: Tracker) -> None:
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


def test_result_marks_the_run_as_complete_and_copies_get_it_with_the_report(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_copies_get_what_the_files_get(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
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
