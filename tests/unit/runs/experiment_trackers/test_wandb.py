"""Weights & Biases: offline, with a key, and when it fails."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from experiment_trackers import description
from run_files import game

from rl4dialog.runs.experiment_trackers import wandb as module
from rl4dialog.runs.experiment_trackers.copies import ExperimentTrackers
from rl4dialog.runs.experiment_trackers.wandb import WandbTracker

PREDICTIONS = [game(0, ("a", "b")), {**game(1), "outcome": {}, "ended_by": None}]


class FakeWandb:
    """Records what it is told; every online start fails."""

    Settings = dict

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.summary: dict[str, Any] = {}
        self.id = "abc"

    def init(self, **kwargs: Any) -> FakeWandb:
        self.calls.append(("init", kwargs["mode"], kwargs["id"], kwargs["resume"]))
        if kwargs["mode"] is None:
            raise ConnectionError("no route to host")
        return self

    def define_metric(self, name: str, step_metric: str) -> None: ...

    def log(self, record: Any) -> None:
        self.calls.append(record)

    def Table(self, columns: list[str], data: list[list[Any]]) -> tuple[list[str], int]:
        return columns, len(data)

    def Artifact(self, name: str, type: str) -> FakeWandb:
        self.calls.append((name, type))
        return self

    def add_file(self, path: str) -> None:
        self.calls.append(Path(path).name)

    def log_artifact(self, artifact: Any) -> None:
        assert artifact is self

    def finish(self, exit_code: int) -> None:
        self.calls.append(exit_code)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    return fake


def test_online_failure_falls_back_to_offline(
    fake: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "made up for this test")
    monkeypatch.delenv("WANDB_MODE")
    tracker = WandbTracker(description(tmp_path, run_id="xyz"))
    assert fake.calls == [("init", None, "xyz", "allow"), ("init", "offline", "xyz", "allow")]
    assert "no route to host" in caplog.text and tracker.run_id == "abc"


def test_records_have_their_step_and_the_end_has_summary_and_report(
    fake: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(FakeWandb, "init", lambda self, **kwargs: self)
    tracker = WandbTracker(description(tmp_path))
    tracker.log({"rollout/kl": None}, "iteration", 3)
    tracker.log_predictions("val", 3, [{"sample_id": 1}, {"sample_id": 2}], tmp_path / "x")
    tracker.log_summary({"result/val/after/a": 1.0}, 3)
    tracker.log_report(tmp_path / "report.html")
    tracker.finish(failed=True)
    assert fake.calls == [
        {"iteration": 3, "rollout/kl": None},
        {"val_predictions": (["sample_id"], 2), "epoch": 3},
        ("report-abc", "report"),
        "report.html",
        1,
    ]
    assert fake.summary == {"result/val/after/a": 1.0}


def test_netrc_of_wandb_login_counts_as_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not module._has_key()
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password made-up-for-this-test\n")
    assert module._has_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://other.example")
    assert not module._has_key()


def test_run_without_a_key_is_offline_inside_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    caplog.set_level(logging.INFO, logger="rl4dialog")
    about = description(tmp_path)
    trackers = ExperimentTrackers(["wandb"], about, {})
    trackers.log({"rollout/kl": float("nan")}, "iteration", 1)
    trackers.log({"val/a": 1.0}, "epoch", 1)
    trackers.log_predictions("val", 1, PREDICTIONS, tmp_path / "predictions.json")
    (about.root / "report.html").write_text("<p>")
    trackers.log_result({"result/val/after/a": 1.0}, 1, about.root / "report.html")
    trackers.finish(failed=False)
    assert [record.levelname for record in caplog.records] == ["INFO"] and "no wandb API key" in caplog.text
    assert list(about.root.glob("wandb/offline-run-*/*.wandb"))
