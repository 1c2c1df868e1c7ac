"""Experiment trackers: what each one is sent, and what happens if one fails."""

import logging
import os
import subprocess
import sys
from unittest.mock import MagicMock, call

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
    check_outputs,
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


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio", "tensorboard"])
def test_missing_package_is_told_with_the_install_line(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ConfigError, match=rf"output {name} needs the package {name}: pip install 'rl4dialog\[{name}\]'"
    ):
        check_outputs(["csv", name])
    check_outputs(["csv"])


@pytest.mark.long
def test_nothing_is_imported_unless_asked_for(tmp_path):
    subprocess.run([sys.executable, "-c", BLOCKED, str(tmp_path)], check=True)


def test_tracker_that_does_not_start_is_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(self, about):
        raise OSError("no connection to https://me:hunter2@host/ with key 0123456789abcdef")

    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    monkeypatch.setattr(FakeTracker.install(monkeypatch), "__init__", refuse)
    trackers = ExperimentTrackers(["trackio"], description(tmp_path), {})
    trackers.log({"a": 1.0}, "iteration", 1)
    assert trackers.run_ids == {}
    assert "cannot start trackio: no connection to https://***@host/ with key ***; the run continues" in caplog.text


def test_failing_tracker_is_disabled_with_one_warning(tmp_path, monkeypatch, caplog):
    def fail(self, *args):
        raise RuntimeError("service died")

    monkeypatch.setattr(FakeTracker.install(monkeypatch), "log", fail)
    trackers = ExperimentTrackers(["trackio"], description(tmp_path), {})
    for step in (1, 2):
        trackers.log({"a": 1.0}, "iteration", step)
    trackers.finish(failed=False)
    assert caplog.text.count("trackio failed and is disabled (service died)") == 1
    assert FakeTracker.calls == []


def test_secrets_of_a_config_do_not_leave_the_machine(tmp_path, monkeypatch):
    fake = FakeTracker.install(monkeypatch)
    config = {"reward_fn": {"args": [{"api_key": "sk-1", "model": "m"}]}, "password": "x", "pad_token": "<pad>"}
    ExperimentTrackers(["trackio"], description(tmp_path, config=config), {})
    assert fake.about.config == {
        "reward_fn": {"args": [{"api_key": "***", "model": "m"}]},
        "password": "***",
        "pad_token": "<pad>",
    }


PREDICTIONS = [game(0, ("a", "b")), {**game(1), "outcome": {}, "ended_by": None}]


def fake_package(monkeypatch, name):
    package = MagicMock()
    monkeypatch.setitem(sys.modules, name, package)
    return package


def test_online_failure_falls_back_to_offline(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_API_KEY", "made up for this test")
    monkeypatch.delenv("WANDB_MODE")
    init = fake_package(monkeypatch, "wandb").init
    init.side_effect = [ConnectionError("no route to host"), MagicMock(id="abc")]
    tracker = WandbTracker(description(tmp_path, run_id="xyz"))
    found = [[call.kwargs[key] for key in ("mode", "id", "resume")] for call in init.call_args_list]
    assert found == [[None, "xyz", "allow"], ["offline", "xyz", "allow"]]
    assert "no route to host" in caplog.text and tracker.run_id == "abc"


def test_records_of_wandb_have_their_step_and_the_end_has_summary_and_report(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    wandb = fake_package(monkeypatch, "wandb")
    run = wandb.init.return_value
    run.id, run.summary = "abc", {}
    wandb.Table = lambda columns, data: (columns, len(data))
    tracker = WandbTracker(description(tmp_path))
    log_all(tracker, tmp_path)
    logged = [{"iteration": 3, "rollout/kl": 0.5, "nothing": None}, {"val_predictions": (["sample_id"], 1), "epoch": 3}]
    assert [call.args[0] for call in run.log.call_args_list] == logged
    wandb.Artifact.assert_called_once_with("report-abc", type="report")
    wandb.Artifact.return_value.add_file.assert_called_once_with(str(tmp_path / "report.html"))
    run.log_artifact.assert_called_once_with(wandb.Artifact.return_value)
    run.finish.assert_called_once_with(exit_code=1)
    assert run.summary == {"result/val/after/a": 1.0}


def log_all(tracker, folder):
    tracker.log({"rollout/kl": 0.5, "nothing": None}, "iteration", 3)
    tracker.log_predictions("val", 3, [{"sample_id": 1}], folder / "x")
    tracker.log_summary({"result/val/after/a": 1.0}, 4)
    tracker.log_report(folder / "report.html")
    tracker.finish(failed=True)


def test_netrc_of_wandb_login_counts_as_a_key(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not module._has_key()
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password made-up-for-this-test\n")
    assert module._has_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://other.example")
    assert not module._has_key()


def test_run_without_a_key_is_offline_inside_the_run_folder(tmp_path, monkeypatch, caplog):
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


def test_runs_of_mlflow_are_in_the_project_folder_unless_there_is_a_server(tmp_path, monkeypatch):
    start = fake_package(monkeypatch, "mlflow").MlflowClient
    client, folder = start.return_value, tmp_path / "p" / "mlflow"
    client.get_experiment_by_name.return_value = None
    for server, location in (("", f"file://{folder}/artifacts"), ("http://server", None)):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
        MLflowTracker(description(tmp_path))
        start.assert_called_with(tracking_uri=server or f"sqlite:///{folder}/mlflow.db")
        client.create_experiment.assert_called_with("p", artifact_location=location)


def test_values_of_mlflow_have_their_step_and_names_that_it_accepts(tmp_path, monkeypatch):
    mlflow = fake_package(monkeypatch, "mlflow")
    mlflow.entities.Metric = lambda key, value, timestamp, step: (key, value, step)
    mlflow.entities.Param = lambda key, value: (key, value)
    client = mlflow.MlflowClient.return_value
    client.create_run.return_value.info.run_id = "new"
    tracker = MLflowTracker(description(tmp_path, config={"alg": {"id": "ppo"}}))
    client.log_dict.assert_called_once_with("new", {"alg": {"id": "ppo"}}, "config.json")
    tracker.log({"lexical/rouge (f)": 0.5, "nothing": None}, "epoch", 4)
    log_all(tracker, tmp_path)
    assert client.log_batch.mock_calls == [
        call("new", params=[("alg.id", "ppo")]),
        *(call("new", metrics=[each]) for each in (("lexical/rouge _f_", 0.5, 4), ("rollout/kl", 0.5, 3))),
        call("new", metrics=[("result/val/after/a", 1.0, 4)]),
    ]
    files = [call("new", str(tmp_path / "x"), "predictions"), call("new", str(tmp_path / "report.html"))]
    assert client.log_artifact.mock_calls == files
    client.set_terminated.assert_called_once_with("new", "FAILED")
    client.reset_mock()
    assert MLflowTracker(description(tmp_path, run_id="old")).run_id == "old"
    client.update_run.assert_called_once_with("old", status="RUNNING")
    client.log_dict.assert_called_once_with("old", {"seed": 1}, "config.json")
    client.log_batch.assert_not_called()


@pytest.mark.long
def test_real_run_is_logged_and_continued(tmp_path, monkeypatch):
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


def test_records_of_trackio_have_their_step_and_are_in_the_project_folder_unless_selected(
    tmp_path, monkeypatch, capsys
):
    trackio = fake_package(monkeypatch, "trackio")
    run = trackio.init.return_value
    trackio.init.side_effect = lambda name, **_: print("noise of trackio") or run
    trackio.Table = lambda columns, data: (columns, data)
    run.name = "r"
    for given in ("elsewhere", None):
        monkeypatch.setenv("TRACKIO_DIR", given) if given else monkeypatch.delenv("TRACKIO_DIR")
        tracker = TrackioTracker(description(tmp_path))
        assert os.environ["TRACKIO_DIR"] == (given or str(tmp_path / "p" / "trackio"))
    log_all(tracker, tmp_path)
    tracker.log_predictions("val", 3, [{"turns": [{"text": "é"}]}], tmp_path / "x")
    assert run.log.mock_calls == [
        call({"rollout/kl": 0.5}, step=3),
        call({"val_predictions": (["sample_id"], [[1]])}, step=3),
        call({"result/val/after/a": 1.0}, step=4),
        call({"val_predictions": (["turns"], [['[{"text": "é"}]']])}, step=3),
    ]
    run.log_artifact.assert_called_once_with(str(tmp_path / "report.html"), name="report-r", type="report")
    TrackioTracker(description(tmp_path, run_id="r2"))
    given = [each.kwargs for each in trackio.init.call_args_list[1:]]
    assert [(each["name"], each["resume"]) for each in given] == [("r", "never"), ("r2", "allow")]
    assert [(each["project"], each["config"]) for each in given] == [("p", {"seed": 1})] * 2
    assert capsys.readouterr().out == ""


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


def test_real_run_of_trackio_is_logged_and_continued(tmp_path):
    pytest.importorskip("trackio")
    environment = {key: value for key, value in os.environ.items() if key != "TRACKIO_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", REAL, str(tmp_path)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[(0, 0.5), (1, 0.75)]\n"
    assert list((tmp_path / "p" / "trackio").glob("*.db"))
