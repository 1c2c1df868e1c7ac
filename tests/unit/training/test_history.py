"""One metric over the evaluations."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rl4dialog.core.errors import ConfigError
from rl4dialog.runs.run_folder import RunFolder
from rl4dialog.training.callbacks.history import EvaluationResult, MetricHistory, recorded_evaluations


def history(values: list[float | None], mode: str = "max") -> MetricHistory:
    results = [EvaluationResult(5 * i, "val", {"m": value}) for i, value in enumerate(values)]  # type: ignore[dict-item]
    return MetricHistory([EvaluationResult(0, "test", {"other": 9.0}), *results], "m", mode, "mine")


@pytest.mark.parametrize(
    ("values", "mode", "min_delta", "best"),
    [
        ([0.1], "max", 0.0, (0, 0.1, 0)),
        ([0.1, 0.3, 0.2, 0.3], "max", 0.0, (5, 0.3, 2)),
        ([0.1, 0.3, 0.2, 0.31], "max", 0.05, (5, 0.3, 2)),
        ([3.0, 2.0, 2.5], "min", 0.0, (5, 2.0, 1)),
        ([None, 0.2, None], "max", 0.0, (5, 0.2, 1)),
    ],
)
def test_best_counts_the_evaluations_since(
    values: list[float | None], mode: str, min_delta: float, best: tuple[int, float, int]
) -> None:
    assert history(values, mode).best(min_delta) == best


def test_nothing_evaluated_is_no_best() -> None:
    assert history([]).best() is None and history([]).latest() is None


def test_latest_may_have_no_value() -> None:
    latest = history([0.1, None]).latest()
    assert latest is not None and latest[0] == 5 and math.isnan(latest[1])


def test_wrong_metric_is_told_with_those_that_there_are() -> None:
    results = [EvaluationResult(0, "val", {"lexical/meteor": 0.1, "reward": 0.2})]
    with pytest.raises(ConfigError, match=r"no metric 'lexical/metor'; did you mean 'lexical/meteor'\? \(they have: "):
        MetricHistory(results, "lexical/metor", "max", "callback 'early_stopping'").check()


def test_records_of_a_run_are_its_history(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "p", "e")
    assert recorded_evaluations(folder) == []
    for epoch in (0, 2):
        folder.append_jsonl("val_split_metrics.jsonl", {"epoch": epoch, "metrics": {"m": 0.5 * epoch}})
    folder.append_jsonl("test_split_metrics.jsonl", {"epoch": 0, "metrics": {"m": 0.25}})
    assert recorded_evaluations(folder) == [(0, "val", {"m": 0.0}), (0, "test", {"m": 0.25}), (2, "val", {"m": 1.0})]
