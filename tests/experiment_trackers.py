"""A tracker that keeps what it is given, and descriptions of runs."""

from typing import Any

from rl4dialog.runs.experiment_trackers import _TRACKERS, ExperimentTracker, RunDescription


def description(tmp_path, **changes):
    root = tmp_path / "p" / "r"
    root.mkdir(parents=True, exist_ok=True)
    return RunDescription(**{"root": root, "project": "p", "name": "r", "config": {"seed": 1}, **changes})


class FakeTracker(ExperimentTracker):
    """Stands for trackio, also where no tracker is installed."""

    def __init__(self, about):
        self.run_id = "fake"
        type(self).about, type(self).calls = about, []

    about: RunDescription
    calls: list[Any]

    @classmethod
    def install(cls, monkeypatch):
        monkeypatch.setitem(_TRACKERS, "trackio", cls)
        return cls

    def log(self, values, counter, step):
        self.calls.append(("log", values, counter, step))

    def log_predictions(self, split, epoch, predictions, file):
        self.calls.append(("predictions", split, epoch, file))

    def log_summary(self, values, step):
        self.calls.append(("summary", values, step))

    def log_report(self, file):
        self.calls.append(("report", file))

    def finish(self, failed):
        self.calls.append(("finish", failed))
