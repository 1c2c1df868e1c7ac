"""The files of a run, and wandb offline."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from run_files import game
from tiny import make_gpt2, make_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from rl4dialog.runs import tracking as module
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


def test_wandb_is_not_imported_unless_asked_for(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it would raise
    tracker = Tracker(folder, {}, "p", "r")
    tracker.log_metrics(0, "val", {"a": 1.0})
    tracker.close()


def test_missing_wandb_is_a_warning_and_no_loss(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    tracker = Tracker(folder, {}, "p", "r", log_to_wandb=True)
    tracker.log_metrics(0, "val", {"a": 1.0})
    tracker.close()
    assert "pip install wandb" in caplog.text
    assert len(read_lines(folder, "val_split_metrics.jsonl")) == 1


def test_wandb_runs_offline_inside_the_run_folder_without_a_key(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    tracker = Tracker(folder, {"seed": 1}, "p", "r", log_to_wandb=True)
    tracker.log_rollout_infos({"iteration": 1, "rollout/kl": float("nan")})
    tracker.log_metrics(0, "val", {"a": 1.0})
    tracker.log_predictions(0, "val", [{"sample_id": 1, "generated_text": "x", "extra": None}])
    tracker.log_predictions(1, "val", [game(0, ("a", "b")), {**game(1), "outcome": {}, "ended_by": None}])
    tracker.close()
    log = folder.path("log.txt").read_text()
    assert log.count("wandb") == log.splitlines()[0].count("wandb") > 0  # one line, and no failure after it
    assert "no wandb API key" in log
    assert list(folder.path("wandb").glob("offline-run-*/*.wandb"))
    assert len(read_lines(folder, "val_split_metrics.jsonl")) == 1


def test_netrc_of_wandb_login_counts_as_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not module._has_wandb_key()
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password made-up-for-this-test\n")
    assert module._has_wandb_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://other.example")
    assert not module._has_wandb_key()


class BrokenWandb:
    """Starts, and then fails at everything."""

    Settings = dict

    def __init__(self) -> None:
        self.modes: list[str | None] = []

    def init(self, mode: str | None, **kwargs: Any) -> BrokenWandb:
        self.modes.append(mode)
        if mode is None:
            raise ConnectionError("no route to host")
        return self

    def define_metric(self, name: str, step_metric: str) -> None: ...

    def log(self, record: Any) -> None:
        raise RuntimeError("service died")


def test_failing_wandb_falls_back_and_never_loses_the_files(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wandb = BrokenWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # type: ignore[arg-type]
    monkeypatch.setenv("WANDB_API_KEY", "made up")
    monkeypatch.delenv("WANDB_MODE")
    tracker = Tracker(folder, {}, "p", "r", log_to_wandb=True)
    assert wandb.modes == [None, "offline"]
    assert "no route to host" in caplog.text
    for epoch in (0, 1):
        tracker.log_metrics(epoch, "val", {"a": 1.0})
    tracker.close()
    assert caplog.text.count("service died") == 1
    assert len(read_lines(folder, "val_split_metrics.jsonl")) == 2
