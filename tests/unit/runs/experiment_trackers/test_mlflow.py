"""MLflow, in the project folder and on a server."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from experiment_trackers import description

from rl4dialog.runs.experiment_trackers.mlflow import MLflowTracker


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
