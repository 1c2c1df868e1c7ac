"""Numbers of runs survive the file, and KL is read around an evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl4dialog.experiments.quality.outcomes import Outcome, Outcomes, kl_curve, write_outcomes


def test_outcomes_are_written_with_all_numbers(outcomes: Outcomes, tmp_path: Path) -> None:
    write_outcomes(outcomes, tmp_path / "outcomes.json")
    content = json.loads((tmp_path / "outcomes.json").read_text())
    assert [Outcome(**each) for each in content["done"]] == outcomes.done
    assert content["failed"] == outcomes.failed


def test_the_kl_of_an_evaluation_is_that_of_the_rollouts_around_it() -> None:
    run: Any = SimpleNamespace(column=lambda key: [0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    # Rollout i + 1 is of the policy after iteration i; of the last iteration, there is no later rollout.
    assert kl_curve(run, [0, 2, 4, 6]) == pytest.approx([0.0, 0.1, 0.3, 0.45])
