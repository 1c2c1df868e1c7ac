"""Numbers of runs survive the file, and KL is read around an evaluation."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.experiments.quality.outcomes import Outcome, Outcomes, kl_curve, read_outcome, write_outcomes


def test_outcomes_are_written_with_all_numbers(outcomes: Outcomes, tmp_path: Path) -> None:
    write_outcomes(outcomes, tmp_path / "outcomes.json")
    content = json.loads((tmp_path / "outcomes.json").read_text())
    assert [Outcome(**each) for each in content["done"]] == outcomes.done
    assert content["failed"] == outcomes.failed


def complete_run(folder: Path) -> Path:
    """The files of a complete run, but for its validation metrics."""
    metrics = {"before": {"length/mean": 1.0}, "after": {"length/mean": 2.0}}
    (folder / "config.json").write_text('{"alg": {"id": "ppo"}}')
    (folder / "result.json").write_text(json.dumps({"iterations": 1, "val": metrics, "test": metrics}))
    (folder / "epoch_0_val_split_predictions.json").write_text("[]")
    return folder


def test_missing_validation_metrics_are_gaps_in_the_curve(tmp_path: Path) -> None:
    (value,) = read_outcome("PPO", 0, complete_run(tmp_path), ["length/mean"]).curves["length/mean"]
    assert math.isnan(value)


def test_unknown_metric_says_what_to_do_without_training_again(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"did you mean 'length/mean'.*correct metrics in the plan.*--page_only"):
        read_outcome("PPO", 0, complete_run(tmp_path), ["length/men"])


def test_the_kl_of_an_evaluation_is_that_of_the_rollouts_around_it() -> None:
    run: Any = SimpleNamespace(column=lambda key: [0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    # Rollout i + 1 is of the policy after iteration i; of the last iteration, there is no later rollout.
    assert kl_curve(run, [0, 2, 4, 6]) == pytest.approx([0.0, 0.1, 0.3, 0.45])
