"""Causes of failed conversations: counts before and after training, with examples on the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rl4dialog.runs.report.failures import FailureCount, failure_counts
from rl4dialog.runs.report.predictions import Predictions, read_predictions
from rl4dialog.runs.report.samples import choose_samples


def predictions(tmp_path: Path, *failures: list[str]) -> Predictions:
    records: list[dict[str, Any]] = [
        {
            "sample_id": i,
            "goal_text": f"goal {i}",
            "turns": [{"speaker": "agent", "text": "hello", "reward": 0.0}],
            "outcome": {},
            "ended_by": "partner",
            "failures": each,
        }
        for i, each in enumerate(failures)
    ]
    (tmp_path / "x.json").write_text(json.dumps(records))
    found = read_predictions(tmp_path / "x.json")
    assert found is not None
    return found


def test_causes_are_counted_once_per_conversation_most_frequent_now_first(tmp_path: Path) -> None:
    before = predictions(tmp_path, ["late", "late"], ["late"], ["wrong"])
    after = predictions(tmp_path, [], ["wrong"], ["wrong"])
    samples = choose_samples({"before": before, "after": after})
    assert [sample.goal for sample in samples] == ["goal 0", "goal 1", "goal 2"]
    assert failure_counts(before, after, samples) == [
        FailureCount("wrong", 1, 2, samples[1:]),
        FailureCount("late", 2, 0, samples[:2]),
    ]


def test_single_evaluation_has_one_column(tmp_path: Path) -> None:
    before = predictions(tmp_path, ["late"])
    samples = choose_samples({"before": before})
    assert failure_counts(before, None, samples) == [FailureCount("late", 1, None, samples)]
    assert failure_counts(None, None, []) == []
