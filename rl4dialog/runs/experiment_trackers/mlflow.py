"""MLflow: on the server of ``MLFLOW_TRACKING_URI``, or in ``mlflow/`` of the project folder."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from rl4dialog.core.yaml_loader import flatten
from rl4dialog.runs.experiment_trackers.tracker import ExperimentTracker, RunDescription, numbers

_logger = logging.getLogger(__name__)
_MAX_BATCH = 100  # of parameters in one request
_MAX_CHARACTERS = 500  # of a parameter, in any store


class MLflowTracker(ExperimentTracker):
    """A run in MLflow, in the experiment with the name of the project.

    The parameters are those of the first start. Of a resumed run, only the artifact ``config.json`` is updated.

    Args:
        about: The run.
    """

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
            experiment = self._client.get_experiment_by_name(about.project)
            if experiment is None:
                experiment_id = self._client.create_experiment(about.project, artifact_location=artifacts)
            else:
                experiment_id = experiment.experiment_id
        if about.run_id is None:
            self.run_id = self._client.create_run(experiment_id, run_name=about.name).info.run_id
            self._log_parameters(about.config)
        else:
            self.run_id = about.run_id
            self._client.update_run(self.run_id, status="RUNNING")
        self._client.log_dict(self.run_id, dict(about.config), "config.json")

    def log(self, values: Mapping[str, Any], counter: str, step: int) -> None:
        now = int(time.time() * 1000)
        metrics = [self._entities.Metric(_name(key), value, now, step) for key, value in numbers(values).items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def log_predictions(self, split: str, epoch: int, predictions: Sequence[Mapping[str, Any]], file: Path) -> None:
        self._client.log_artifact(self.run_id, str(file), "predictions")

    def log_summary(self, values: Mapping[str, Any], step: int) -> None:
        self.log(values, "iteration", step)

    def log_report(self, file: Path) -> None:
        self._client.log_artifact(self.run_id, str(file))

    def finish(self, failed: bool) -> None:
        self._client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")

    def _log_parameters(self, config: Mapping[str, Any]) -> None:
        pairs = iter(flatten(config).items())
        while batch := list(islice(pairs, _MAX_BATCH)):
            parameters = [self._entities.Param(_name(key), str(value)[:_MAX_CHARACTERS]) for key, value in batch]
            self._client.log_batch(self.run_id, params=parameters)


def _name(key: str) -> str:
    """A name that MLflow accepts: other characters, such as brackets, become underscores."""
    return re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait for other runs of the project that create MLflow's tables, which fails if two do it at the same time."""
    with open(folder / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
