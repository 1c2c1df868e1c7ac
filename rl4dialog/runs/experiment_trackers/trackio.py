"""trackio: in ``trackio/`` of the project folder, unless its environment variables select another place."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl4dialog.runs.experiment_trackers.tracker import ExperimentTracker, RunDescription, numbers, table

_logger = logging.getLogger(__name__)


class TrackioTracker(ExperimentTracker):
    """A run in trackio, identified by its name in the project.

    Args:
        about: The run.
    """

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
        _logger.info(
            "trackio logs to %s; view it with: TRACKIO_DIR=%s trackio show --project %s", folder, folder, about.project
        )

    def log(self, values: Mapping[str, Any], counter: str, step: int) -> None:
        self._run.log(numbers(values), step=step)

    def log_predictions(self, split: str, epoch: int, predictions: Sequence[Mapping[str, Any]], file: Path) -> None:
        columns, rows = table(predictions)
        self._run.log({f"{split}_predictions": self._trackio.Table(columns=columns, data=rows)}, step=epoch)

    def log_summary(self, values: Mapping[str, Any], step: int) -> None:
        self.log(values, "iteration", step)

    def log_report(self, file: Path) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.log_artifact(str(file), name=f"report-{self.run_id}", type="report")

    def finish(self, failed: bool) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._trackio.finish()
