"""A tracker that keeps what it is given, and descriptions of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rl4dialog.runs.experiment_trackers import _TRACKERS, ExperimentTracker, RunDescription


def description(tmp_path: Path, **changes: Any) -> RunDescription:
    root = tmp_path / "p" / "r"
    root.mkdir(parents=True, exist_ok=True)
    return RunDescription(**{"root": root, "project": "p", "name": "r", "config": {"seed": 1}, **changes})


class FakeTracker(ExperimentTracker):
    """Stands for trackio, also where no tracker is installed."""

    def __init__(self, about: RunDescription) -> None:
        self.run_id = "fake"
        type(self).about, type(self).calls = about, []

    about: RunDescription
    calls: list[Any]

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch) -> type[FakeTracker]:
        monkeypatch.setitem(_TRACKERS, "trackio", cls)
        return cls

    def log(self, values: Mapping[str, Any], counter: str, step: int) -> None:
        self.calls.append(("log", values, counter, step))

    def log_predictions(self, split: str, epoch: int, predictions: Sequence[Mapping[str, Any]], file: Path) -> None:
        self.calls.append(("predictions", split, epoch, file))

    def log_summary(self, values: Mapping[str, Any], step: int) -> None:
        self.calls.append(("summary", values, step))

    def log_report(self, file: Path) -> None:
        self.calls.append(("report", file))

    def finish(self, failed: bool) -> None:
        self.calls.append(("finish", failed))
