"""trackio, in the project folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from experiment_trackers import description

from rl4dialog.runs.experiment_trackers.trackio import TrackioTracker


class FakeTrackio:
    """Records what it is told."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def init(self, name: str, resume: str, **kwargs: Any) -> FakeTrackio:
        print("noise of trackio")
        self.calls.append((name, resume, kwargs["project"], kwargs["config"]))
        self.name = name
        return self

    def log(self, values: Any, step: int) -> None:
        self.calls.append((values, step))

    def Table(self, columns: list[str], data: list[list[Any]]) -> Any:
        return columns, data

    def log_artifact(self, path: str, name: str, type: str) -> None:
        self.calls.append((Path(path).name, name, type))

    def finish(self) -> None: ...


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeTrackio:
    fake = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", fake)  # type: ignore[arg-type]
    monkeypatch.setenv("TRACKIO_DIR", "elsewhere")
    return fake


def test_records_have_their_step(fake: FakeTrackio, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = TrackioTracker(description(tmp_path))
    tracker.log({"rollout/kl": 0.5, "rollout/nothing": None}, "iteration", 3)
    tracker.log_predictions("val", 3, [{"sample_id": 1, "turns": [{"text": "é"}]}], tmp_path / "x")
    tracker.log_summary({"result/val/after/a": 1.0}, 4)
    tracker.log_report(tmp_path / "report.html")
    tracker.finish(failed=False)
    assert fake.calls == [
        ("r", "never", "p", {"seed": 1}),
        ({"rollout/kl": 0.5}, 3),
        ({"val_predictions": (["sample_id", "turns"], [[1, '[{"text": "é"}]']])}, 3),
        ({"result/val/after/a": 1.0}, 4),
        ("report.html", "report-r", "report"),
    ]
    assert capsys.readouterr().out == ""


def test_local_files_are_in_the_project_folder_unless_selected(
    fake: FakeTrackio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TrackioTracker(description(tmp_path))
    assert os.environ["TRACKIO_DIR"] == "elsewhere"
    monkeypatch.delenv("TRACKIO_DIR")
    TrackioTracker(description(tmp_path))
    assert os.environ["TRACKIO_DIR"] == str(tmp_path / "p" / "trackio")


def test_resumed_run_continues(fake: FakeTrackio, tmp_path: Path) -> None:
    assert TrackioTracker(description(tmp_path, run_id="r2")).run_id == "r2"
    assert fake.calls == [("r2", "allow", "p", {"seed": 1})]


REAL = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from experiment_trackers import description
from rl4dialog.runs.experiment_trackers.trackio import TrackioTracker
folder = Path(sys.argv[1])
(folder / "report.html").write_text("<p>")
tracker = TrackioTracker(description(folder))
tracker.log({"val/a": 0.5}, "epoch", 0)
tracker.log_predictions("val", 0, [{"sample_id": 1}], folder / "x")
tracker.finish(failed=True)
tracker = TrackioTracker(description(folder, run_id=tracker.run_id))
tracker.log({"val/a": 0.75}, "epoch", 1)
tracker.log_report(folder / "report.html")
tracker.finish(failed=False)
from trackio.sqlite_storage import SQLiteStorage
print([(row["step"], row["val/a"]) for row in SQLiteStorage.get_logs("p", "r") if "val/a" in row])
"""


def test_real_run_is_logged_and_continued(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    environment = {key: value for key, value in os.environ.items() if key != "TRACKIO_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[(0, 0.5), (1, 0.75)]\n"
    assert list((tmp_path / "p" / "trackio").glob("*.db"))
