"""The experiment trackers of a run. They are copies: a failing one is disabled with a warning, and the run continues.

The files of the run folder are authoritative.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.registry import import_object
from rl4dialog.runs.experiment_trackers.tracker import ExperimentTracker, RunDescription, hide_secrets, redact
from rl4dialog.runs.run_folder import to_plain

_logger = logging.getLogger(__name__)
_TRACKERS = {
    "wandb": "rl4dialog.runs.experiment_trackers.wandb:WandbTracker",
    "mlflow": "rl4dialog.runs.experiment_trackers.mlflow:MLflowTracker",
    "trackio": "rl4dialog.runs.experiment_trackers.trackio:TrackioTracker",
}


def check_trackers(outputs: Collection[str]) -> None:
    """Check that the packages of the selected trackers are installed."""
    for name in _TRACKERS:
        if name in outputs and not _is_installed(name):
            raise ConfigError(f"the log output {name} needs the package {name}: pip install 'rl4dialog[{name}]'")


class ExperimentTrackers:
    """Sends the records of a run to all selected trackers, which start when the object is created.

    Args:
        outputs: ``wandb``, ``mlflow``, ``trackio``; others are ignored.
        about: The run; its ``run_id`` is ignored.
        run_ids: Ids of the runs to continue, by tracker.

    Attributes:
        run_ids: Ids of the runs, by tracker.
    """

    def __init__(self, outputs: Collection[str], about: RunDescription, run_ids: Mapping[str, str]) -> None:
        self._trackers: dict[str, ExperimentTracker] = {}
        about = replace(about, config=hide_secrets(to_plain(about.config)))
        for name, path in _TRACKERS.items():
            if name not in outputs:
                continue
            try:
                self._trackers[name] = import_object(path)(replace(about, run_id=run_ids.get(name)))
            except Exception as error:  # trackers raise many exception types
                _logger.warning("cannot start %s: %s; the run continues without it", name, _reason(error))
        self.run_ids = {name: tracker.run_id for name, tracker in self._trackers.items()}

    def log(self, values: Mapping[str, Any], counter: str, step: int) -> None:
        """Log values under an ``iteration`` or ``epoch``."""
        plain = {key: value for key, value in to_plain(values).items() if key != counter}
        self._send(lambda tracker: tracker.log(plain, counter, step))

    def log_predictions(self, split: str, epoch: int, predictions: Sequence[Mapping[str, Any]], file: Path) -> None:
        """Log the predictions of an evaluation, and the file with all of them."""
        self._send(lambda tracker: tracker.log_predictions(split, epoch, predictions, file))

    def log_result(self, values: Mapping[str, Any], step: int, report: Path) -> None:
        """Log the final result, and the report if it exists."""
        plain = to_plain(values)
        self._send(lambda tracker: tracker.log_summary(plain, step))
        if report.is_file():
            self._send(lambda tracker: tracker.log_report(report))

    def finish(self, failed: bool) -> None:
        """End all runs."""
        self._send(lambda tracker: tracker.finish(failed))
        self._trackers = {}

    def _send(self, call: Callable[[ExperimentTracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except Exception as error:  # never fatal, because the files are authoritative
                del self._trackers[name]
                _logger.warning("%s failed and is disabled (%s); the run folder is complete", name, _reason(error))


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:  # a module without a spec, or blocked
        return False


def _reason(error: Exception) -> str:
    return redact(" ".join(str(error).split())[:300] or type(error).__name__)
