"""Experiment trackers: what each one is sent, and what happens if one fails."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from experiment_trackers import FakeTracker, description
from run_files import game

from rl4dialog.core.errors import ConfigError
from rl4dialog.runs import experiment_trackers as module
from rl4dialog.runs.experiment_trackers import (
    ExperimentTrackers,
    MLflowTracker,
    TrackioTracker,
    WandbTracker,
    check_trackers,
)

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
    own = [record.levelname for record in caplog.records if record.name.startswith("rl4dialog")]
    assert own == ["INFO"] and "no wandb API key" in caplog.text
    assert list(about.root.glob("wandb/offline-run-*/*.wandb"))


class FakeClient:
    """MLflow's client, with what it was asked for."""

    uris: list[str]
    calls: list[Any]

    def __init__(self, tracking_uri: str) -> None:
        type(self).uris, type(self).calls = [tracking_uri], []

    def get_experiment_by_name(self, name: str) -> Any:
        return None

    def create_experiment(self, name: str, artifact_location: str | None) -> str:
        self.calls.append((name, artifact_location))
        return "0"

    def create_run(self, experiment_id: str, run_name: str) -> Any:
        return SimpleNamespace(info=SimpleNamespace(run_id="new"))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        self.calls.append((run_id, *((m.key, m.value, m.step) for m in metrics), *((p.key, p.value) for p in params)))

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self.calls.append((name, *args))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    entities = SimpleNamespace(
        Metric=lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step),
        Param=lambda key, value: SimpleNamespace(key=key, value=value),
    )
    mlflow = SimpleNamespace(MlflowClient=FakeClient, entities=entities)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)  # type: ignore[arg-type]
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return FakeClient


def test_run_is_in_the_project_folder_unless_there_is_a_server(
    client: type[FakeClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    MLflowTracker(description(tmp_path))
    folder = tmp_path / "p" / "mlflow"
    assert client.uris == [f"sqlite:///{folder}/mlflow.db"]
    assert client.calls[0] == ("p", f"file://{folder}/artifacts")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server")
    MLflowTracker(description(tmp_path))
    assert client.uris == ["http://server"] and client.calls[0] == ("p", None)


def test_values_have_their_step_and_names_that_mlflow_accepts(client: type[FakeClient], tmp_path: Path) -> None:
    tracker = MLflowTracker(description(tmp_path, config={"alg": {"id": "ppo"}}))
    assert client.calls[1:] == [("new", ("alg.id", "ppo")), ("log_dict", "new", {"alg": {"id": "ppo"}}, "config.json")]
    client.calls.clear()
    tracker.log({"lexical/rouge (f)": 0.5, "nothing": None}, "epoch", 4)
    tracker.log_summary({"result/val/after/a": 1.0}, 5)
    tracker.log_report(tmp_path / "report.html")
    tracker.finish(failed=True)
    assert client.calls == [
        ("new", ("lexical/rouge _f_", 0.5, 4)),
        ("new", ("result/val/after/a", 1.0, 5)),
        ("log_artifact", "new", str(tmp_path / "report.html")),
        ("set_terminated", "new", "FAILED"),
    ]


def test_resumed_run_continues_with_its_parameters(client: type[FakeClient], tmp_path: Path) -> None:
    tracker = MLflowTracker(description(tmp_path, run_id="old"))
    assert tracker.run_id == "old"
    assert client.calls[1:] == [("update_run", "old"), ("log_dict", "old", {"seed": 1}, "config.json")]


@pytest.mark.long
def test_real_run_is_logged_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "report.html").write_text("<p>")
    tracker = MLflowTracker(description(tmp_path, config={"seed": 1, **{f"key{i}": i for i in range(150)}}))
    tracker.log({"val/lexical/rouge (f)": 0.5}, "epoch", 0)
    tracker.finish(failed=True)
    tracker = MLflowTracker(description(tmp_path, run_id=tracker.run_id, config={"seed": 2}))
    tracker.log({"val/lexical/rouge (f)": 0.75}, "epoch", 1)
    tracker.log_predictions("val", 1, [], tmp_path / "report.html")
    tracker.log_report(tmp_path / "report.html")
    tracker.finish(failed=False)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/p/mlflow/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("p").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["seed"] == "1" and len(run.data.params) == 151
    history = client.get_metric_history(run.info.run_id, "val/lexical/rouge _f_")
    assert [(metric.step, metric.value) for metric in history] == [(0, 0.5), (1, 0.75)]
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == {
        "config.json", "predictions", "report.html",
    }  # fmt: skip


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
def trackio_run(monkeypatch: pytest.MonkeyPatch) -> FakeTrackio:
    trackio_run = FakeTrackio()
    monkeypatch.setitem(sys.modules, "trackio", trackio_run)  # type: ignore[arg-type]
    monkeypatch.setenv("TRACKIO_DIR", "elsewhere")
    return trackio_run


def test_records_have_their_step(trackio_run: FakeTrackio, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = TrackioTracker(description(tmp_path))
    tracker.log({"rollout/kl": 0.5, "rollout/nothing": None}, "iteration", 3)
    tracker.log_predictions("val", 3, [{"sample_id": 1, "turns": [{"text": "é"}]}], tmp_path / "x")
    tracker.log_summary({"result/val/after/a": 1.0}, 4)
    tracker.log_report(tmp_path / "report.html")
    tracker.finish(failed=False)
    assert trackio_run.calls == [
        ("r", "never", "p", {"seed": 1}),
        ({"rollout/kl": 0.5}, 3),
        ({"val_predictions": (["sample_id", "turns"], [[1, '[{"text": "é"}]']])}, 3),
        ({"result/val/after/a": 1.0}, 4),
        ("report.html", "report-r", "report"),
    ]
    assert capsys.readouterr().out == ""


def test_local_files_are_in_the_project_folder_unless_selected(
    trackio_run: FakeTrackio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TrackioTracker(description(tmp_path))
    assert os.environ["TRACKIO_DIR"] == "elsewhere"
    monkeypatch.delenv("TRACKIO_DIR")
    TrackioTracker(description(tmp_path))
    assert os.environ["TRACKIO_DIR"] == str(tmp_path / "p" / "trackio")


def test_resumed_run_continues(trackio_run: FakeTrackio, tmp_path: Path) -> None:
    assert TrackioTracker(description(tmp_path, run_id="r2")).run_id == "r2"
    assert trackio_run.calls == [("r2", "allow", "p", {"seed": 1})]


REAL = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from experiment_trackers import description
from rl4dialog.runs.experiment_trackers import TrackioTracker
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


def test_real_run_of_trackio_is_logged_and_continued(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    environment = {key: value for key, value in os.environ.items() if key != "TRACKIO_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[(0, 0.5), (1, 0.75)]\n"
    assert list((tmp_path / "p" / "trackio").glob("*.db"))
