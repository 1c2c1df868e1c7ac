"""Win rates: shares of improved samples, with and without what length explains."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.experiments.quality.win_rate import score_differences, win_rate


def test_a_win_is_a_higher_score_and_a_tie_half_of_one() -> None:
    assert win_rate([{"s": [1.0, -1.0, 0.0, 2.0, math.nan]}], "s").value == 2.5 / 4
    assert win_rate([{"s": [1.0, 1.0]}, {"s": [-1.0, 1.0]}], "s").value == 0.75


def test_what_length_explains_does_not_win() -> None:
    rng = np.random.default_rng(0)
    longer = rng.normal(3, 2, 400)
    of_length = {"s": (0.5 * longer + rng.normal(0, 0.1, 400)).tolist(), "n": longer.tolist()}
    assert win_rate([of_length], "s").value > 0.9
    assert win_rate([of_length], "s", "n").value == pytest.approx(0.5, abs=0.07)
    better = {"s": (np.array(of_length["s"]) + 0.05).tolist(), "n": of_length["n"]}
    assert win_rate([better], "s", "n").value == pytest.approx(0.69, abs=0.07)  # 0.05 is half a standard deviation


def test_equal_lengths_change_nothing() -> None:
    run = {"s": [1.0, -1.0, 3.0], "n": [2.0, 2.0, 2.0]}
    assert win_rate([run], "s", "n").value == win_rate([run], "s").value


@pytest.mark.parametrize("n_runs", [2, 3, 5])
def test_the_interval_covers_about_as_often_as_it_says(n_runs: int) -> None:
    rng, held = np.random.default_rng(1), 0
    for _ in range(300):  # runs differ, and so do samples, which all runs share
        scores = rng.normal(0, 0.3, (n_runs, 1)) + rng.normal(0, 0.5, (1, 60)) + rng.normal(0, 1, (n_runs, 60))
        interval = win_rate([{"s": each} for each in scores.tolist()], "s").interval
        assert interval is not None
        held += 0.5 in interval
    assert held / 300 >= 0.93
    assert win_rate([{"s": [1.0, -1.0]}], "s").interval is None


def write_run(folder: Path, *evaluations: dict[int, dict[str, Any]]) -> Path:
    (folder / "config.json").write_text("{}")
    for epoch, scores in enumerate(evaluations):
        rows = [
            {"sample_id": id, "prompt_text": "p", "generated_text": "g", "ref_text": "", **values}
            for id, values in scores.items()
        ]
        (folder / f"epoch_{epoch}_test_split_predictions.json").write_text(json.dumps(rows))
    return folder


def test_differences_pair_the_same_samples(tmp_path: Path) -> None:
    before = {1: {"s": 1.0, "n": 4.0}, 2: {"s": 2.0, "n": 4.0}, 3: {"s": None, "n": 4.0}}
    after = {2: {"s": 5.0, "n": 3.0}, 1: {"s": 1.5, "n": 4.0}, 3: {"s": 1.0, "n": 5.0}}
    found = score_differences(write_run(tmp_path, before, after), ["s", "n"])
    assert found["s"][:2] == [0.5, 3.0] and found["n"][:2] == [0.0, -1.0]
    assert math.isnan(found["s"][2]) and math.isnan(found["n"][2])


def test_missing_scores_are_named(tmp_path: Path) -> None:
    rows = {1: {"s": 1.0}}
    with pytest.raises(DataError, match=r"no scores of single samples under 'other' \(it has: s\)"):
        score_differences(write_run(tmp_path, rows, rows), ["s", "other"])
    with pytest.raises(DataError, match="no test predictions before and after"):
        (tmp_path / "epoch_1_test_split_predictions.json").unlink()
        score_differences(tmp_path, ["s"])
