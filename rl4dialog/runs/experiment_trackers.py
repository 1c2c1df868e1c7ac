"""Experiment trackers of ``logging.outputs``: Weights & Biases, MLflow and trackio.

They are copies of a run's records; the files of the run folder are authoritative. A failing tracker is disabled with a
warning, and the run continues.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import netrc
import os
import re
import time
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.files import to_plain, wait_for_lock
from rl4dialog.core.untrusted import HIDDEN, redacted, without_secrets
from rl4dialog.core.yaml_loader import flatten

_logger = logging.getLogger(__name__)
_MAX_TABLE_ROWS = 100
_MAX_PARAMETERS = 100  # in one request to MLflow
_MAX_CHARACTERS = 500  # of a parameter, in any store of MLflow


@dataclass(frozen=True)
class RunDescription:
    """What a tracker needs to start a run, or to continue that of ``run_id``. The config has no secrets."""

    root: Path
    project: str
    name: str
    config: Mapping[str, Any]
    entity: str | None = None
    run_id: str | None = None


class ExperimentTracker(ABC):
    """A run in an experiment tracker, which starts when the object is created. Any method can raise any exception."""

    run_id: str

    @abstractmethod
    def log(self, values: Mapping[str, Any], counter: str, step: int) -> None:
        """Log plain values at a step, which counts an ``iteration``, or an ``epoch`` of evaluations."""

    @abstractmethod
    def log_predictions(self, split: str, epoch: int, predictions: Sequence[Mapping[str, Any]], file: Path) -> None:
        """Log the predictions of an evaluation, also found in a file of the run folder."""

    def log_summary(self, values: Mapping[str, Any], step: int) -> None:
        """Log the final result."""
        self.log(values, "iteration", step)

    @abstractmethod
    def log_report(self, file: Path) -> None:
        """Upload the report."""

    @abstractmethod
    def finish(self, failed: bool) -> None:
        """End the run."""


class WandbTracker(ExperimentTracker):
    """A run on Weights & Biases; without an API key, or if it cannot be reached, offline in the run folder."""

    def __init__(self, about: RunDescription) -> None:
        import wandb

        self._wandb: Any = wandb
        self._run = self._start(about)
        self.run_id = str(self._run.id)
        # Values that a resumed run sends again get the same step.
        for names, step in (("*", "iteration"), ("val/*", "epoch"), ("test/*", "epoch")):
            self._run.define_metric(names, step_metric=step)

    def log(self, values: Mapping[str, Any], counter: str, step: int) -> None:
        self._run.log({counter: step, **values})

    def log_predictions(self, split: str, epoch: int, predictions: Sequence[Mapping[str, Any]], file: Path) -> None:
        columns, rows = _table(predictions)
        self._run.log({f"{split}_predictions": self._wandb.Table(columns=columns, data=rows), "epoch": epoch})

    def log_summary(self, values: Mapping[str, Any], step: int) -> None:
        self._run.summary.update(dict(values))

    def log_report(self, file: Path) -> None:
        artifact = self._wandb.Artifact(f"report-{self.run_id}", type="report")
        artifact.add_file(str(file))
        self._run.log_artifact(artifact)

    def finish(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))

    def _start(self, about: RunDescription) -> Any:
        mode = os.environ.get("WANDB_MODE")
        if not mode and not _has_key():
            folder = about.root / "wandb"
            _logger.info("no wandb API key: wandb runs offline in %s; upload later with: wandb sync", folder)
            mode = "offline"
        arguments: dict[str, Any] = {
            "project": about.project,
            "name": about.name,
            "entity": about.entity,
            "dir": str(about.root),
            "config": dict(about.config),
            "id": about.run_id,
            "resume": None if about.run_id is None else "allow",
            "settings": self._wandb.Settings(silent=True, console="off", init_timeout=30),
        }
        if mode != "offline":
            try:
                return self._wandb.init(**arguments, mode=None)  # which the variable decides
            except Exception as error:  # wandb raises many exception types
                _logger.warning("cannot start wandb (online): %s; it runs offline", _reason(error))
        return self._wandb.init(**arguments, mode="offline")


class MLflowTracker(ExperimentTracker):
    """A run in MLflow, at ``MLFLOW_TRACKING_URI`` or in ``mlflow/``; its parameters are of the first start."""

    def __init__(self, about: RunDescription) -> None:
        from mlflow import MlflowClient, entities

        self._entities = entities
        uri, artifacts = os.environ.get("MLFLOW_TRACKING_URI"), None
        folder = about.root.parent / "mlflow"
        if not uri:
            folder.mkdir(parents=True, exist_ok=True)
            uri, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
            for name in ("alembic", "mlflow"):
                logging.getLogger(name).setLevel(logging.WARNING)
            _logger.info("MLflow logs to %s; view it with: mlflow ui --backend-store-uri %s", folder, uri)
        with _alone_in(folder) if artifacts else nullcontext():
            self._client = MlflowClient(tracking_uri=uri)
            known, create = self._client.get_experiment_by_name(about.project), self._client.create_experiment
            id = known.experiment_id if known else create(about.project, artifact_location=artifacts)
        if about.run_id is not None:
            self.run_id = about.run_id
            self._client.update_run(self.run_id, status="RUNNING")
        else:
            self.run_id = self._client.create_run(id, run_name=about.name).info.run_id
            parameters = [entities.Param(_name(k), str(v)[:_MAX_CHARACTERS]) for k, v in flatten(about.config).items()]
            for start in range(0, len(parameters), _MAX_PARAMETERS):
                self._client.log_batch(self.run_id, params=parameters[start : start + _MAX_PARAMETERS])
        self._client.log_dict(self.run_id, dict(about.config), "config.json")

    def log(self, values: Mapping[str, Any], counter: str, step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(_name(key), value, now, step) for key, value in _numbers(values).items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def log_predictions(self, split: str, epoch: int, predictions: Sequence[Mapping[str, Any]], file: Path) -> None:
        self._client.log_artifact(self.run_id, str(file), "predictions")

    def log_report(self, file: Path) -> None:
        self._client.log_artifact(self.run_id, str(file))

    def finish(self, failed: bool) -> None:
        self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


class TrackioTracker(ExperimentTracker):
    """A run in trackio, identified by its name, in ``trackio/`` of the project folder or where its variables say."""

    def __init__(self, about: RunDescription) -> None:
        # trackio reads the variable when it is imported.
        folder = os.environ.setdefault("TRACKIO_DIR", str(about.root.parent / "trackio"))
        import trackio

        self._trackio: Any = trackio
        with contextlib.redirect_stdout(io.StringIO()):
            self._run = trackio.init(
                project=about.project,
                name=about.run_id or about.name,
                config=dict(about.config),
                resume="never" if about.run_id is None else "allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        self.run_id = str(self._run.name)
        view = f"TRACKIO_DIR={folder} trackio show --project {about.project}"
        _logger.info("trackio logs to %s; view it with: %s", folder, view)

    def log(self, values: Mapping[str, Any], counter: str, step: int) -> None:
        self._run.log(_numbers(values), step=step)

    def log_predictions(self, split: str, epoch: int, predictions: Sequence[Mapping[str, Any]], file: Path) -> None:
        columns, rows = _table(predictions)
        self._run.log({f"{split}_predictions": self._trackio.Table(columns=columns, data=rows)}, step=epoch)

    def log_report(self, file: Path) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.log_artifact(str(file), name=f"report-{self.run_id}", type="report")

    def finish(self, failed: bool) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._trackio.finish()


_TRACKERS: dict[str, Callable[[RunDescription], ExperimentTracker]] = {
    "wandb": WandbTracker,
    "mlflow": MLflowTracker,
    "trackio": TrackioTracker,
}


def check_outputs(outputs: Collection[str]) -> None:
    """Check that the packages of the selected outputs are installed."""
    for name in [name for name in (*_TRACKERS, "tensorboard") if name in outputs]:
        is_installed = False
        with contextlib.suppress(ValueError):  # a module without a spec, or blocked
            is_installed = find_spec(name) is not None
        if not is_installed:
            raise ConfigError(f"the log output {name} needs the package {name}: pip install 'rl4dialog[{name}]'")


class ExperimentTrackers:
    """Sends the records of a run to all selected trackers; ``run_ids`` are those of runs to continue, by tracker."""

    def __init__(self, outputs: Collection[str], about: RunDescription, run_ids: Mapping[str, str]) -> None:
        self._trackers: dict[str, ExperimentTracker] = {}
        about = replace(about, config=without_secrets(to_plain(about.config)))
        for name in [name for name in _TRACKERS if name in outputs]:
            try:
                self._trackers[name] = _TRACKERS[name](replace(about, run_id=run_ids.get(name)))
            except Exception as error:  # trackers raise many exception types
                _logger.warning("cannot start %s: %s; the run continues without it", name, _reason(error))
        self.run_ids = {name: tracker.run_id for name, tracker in self._trackers.items()}

    def log(self, values: Mapping[str, Any], counter: str, step: int) -> None:
        self._send("log", {key: value for key, value in to_plain(values).items() if key != counter}, counter, step)

    def log_predictions(self, split: str, epoch: int, predictions: Sequence[Mapping[str, Any]], file: Path) -> None:
        """Log the predictions of an evaluation, and the file with all of them."""
        self._send("log_predictions", split, epoch, predictions, file)

    def log_result(self, values: Mapping[str, Any], step: int, report: Path) -> None:
        """Log the final result, and the report if it exists."""
        self._send("log_summary", to_plain(values), step)
        if report.is_file():
            self._send("log_report", report)

    def finish(self, failed: bool) -> None:
        self._send("finish", failed)
        self._trackers = {}

    def _send(self, method: str, *arguments: Any) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                getattr(tracker, method)(*arguments)
            except Exception as error:  # never fatal, because the files are authoritative
                del self._trackers[name]
                _logger.warning("%s failed and is disabled (%s); the run folder is complete", name, _reason(error))


def _name(key: str) -> str:
    """A name that MLflow accepts: other characters, such as brackets, become underscores."""
    return re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait for other runs of the project that create MLflow's tables, which fails if two do it at the same time."""
    with open(folder / ".lock", "w") as file:
        wait_for_lock(file.fileno())
        yield


def _has_key() -> bool:
    """Whether wandb can log in without a prompt: by environment, or by the netrc file written by `wandb login`."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urllib.parse.urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").netloc
    for path in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if path and netrc.netrc(str(Path(path).expanduser())).authenticators(host):
                return True
    return False


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(value) for key, value in values.items() if isinstance(value, (int, float))}


def _table(predictions: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of the first predictions; conversations are JSON texts, since their keys differ by row."""
    columns = list(predictions[0]) if predictions else []
    rows = [[to_plain(row.get(column)) for column in columns] for row in predictions[:_MAX_TABLE_ROWS]]
    as_text = partial(json.dumps, ensure_ascii=False)
    return columns, [[as_text(cell) if isinstance(cell, (list, dict)) else cell for cell in row] for row in rows]


def _reason(error: Exception) -> str:
    """What went wrong, without what environment variables hold as secrets, and without credentials in addresses."""
    text = " ".join(str(error).split())[:300] or type(error).__name__
    for name, value in os.environ.items():
        if len(value) >= 8 and re.search(r"(KEY|TOKEN|PASSWORD|SECRET)$", name):
            text = text.replace(value, HIDDEN)
    return redacted(text)
