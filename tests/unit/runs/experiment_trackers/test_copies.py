"""Several trackers of a run: which ones start, and what happens if one fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from experiment_trackers import FakeTracker, description

from rl4dialog.core.errors import ConfigError
from rl4dialog.runs.experiment_trackers.copies import ExperimentTrackers, check_trackers

BLOCKED = """
import sys
for name in ("wandb", "mlflow", "trackio", "optuna"):
    sys.modules[name] = None
import rl4dialog
from rl4dialog.runs.run_folder import RunFolder
from rl4dialog.runs.tracking import Tracker
from rl4dialog.training import trainer
tracker = Tracker(RunFolder(sys.argv[1], "p", "r"), {}, "p", "r", outputs=["csv"])
tracker.log_metrics(0, "val", {"a": 1.0})
tracker.close()
"""


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_missing_package_is_told_with_the_install_line(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ConfigError, match=rf"output {name} needs the package {name}: pip install 'rl4dialog\[{name}\]'"
    ):
        check_trackers(["csv", name])
    check_trackers(["csv"])


def test_nothing_is_imported_unless_asked_for(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", BLOCKED, str(tmp_path)], check=True)


def test_tracker_that_does_not_start_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: Any, about: Any) -> None:
        raise OSError("no connection to https://me:hunter2@host/ with key 0123456789abcdef")

    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setattr(FakeTracker.install(monkeypatch), "__init__", refuse)
    trackers = ExperimentTrackers(["trackio"], description(tmp_path), {})
    trackers.log({"a": 1.0}, "iteration", 1)
    assert trackers.run_ids == {}
    assert "cannot start trackio: no connection to https://***@host/ with key ***; the run continues" in caplog.text


def test_failing_tracker_is_disabled_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: Any, *args: Any) -> None:
        raise RuntimeError("service died")

    monkeypatch.setattr(FakeTracker.install(monkeypatch), "log", fail)
    trackers = ExperimentTrackers(["trackio"], description(tmp_path), {})
    for step in (1, 2):
        trackers.log({"a": 1.0}, "iteration", step)
    trackers.finish(failed=False)
    assert caplog.text.count("trackio failed and is disabled (service died)") == 1
    assert FakeTracker.calls == []


def test_secrets_of_a_config_do_not_leave_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTracker.install(monkeypatch)
    config = {"reward_fn": {"args": [{"api_key": "sk-1", "model": "m"}]}, "password": "x", "pad_token": "<pad>"}
    ExperimentTrackers(["trackio"], description(tmp_path, config=config), {})
    assert fake.about.config == {
        "reward_fn": {"args": [{"api_key": "***", "model": "m"}]},
        "password": "***",
        "pad_token": "<pad>",
    }
