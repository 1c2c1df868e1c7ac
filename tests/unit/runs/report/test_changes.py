"""Metrics before and after, with intervals where there can be some."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_files import prediction, write_json, write_lines, write_run

from rl4dialog.functional.statistics import Estimate, Interval, wilson_interval
from rl4dialog.runs.report.changes import NO_SAMPLE_SCORES, NOT_A_MEAN, MetricChange, described, metric_changes
from rl4dialog.runs.report.runs import read_run


def changes(folder: Path) -> dict[str, MetricChange]:
    run = read_run(folder)
    epochs = run.epochs("test")
    before, after = run.predictions("test", epochs[0]), run.predictions("test", epochs[-1])
    found = metric_changes(run, "test", before, after if len(epochs) > 1 else None)
    return {change.key: change for change in found}


def test_mean_of_replies_has_intervals_and_the_rest_says_why_not(tmp_path: Path) -> None:
    found = changes(write_run(tmp_path, n_prompts=80))
    assert list(found) == ["m", "d"]
    before, after, difference = found["m"].before, found["m"].after, found["m"].difference
    assert before is not None and after is not None and difference is not None
    assert (before.value, after.value, difference.value) == (0.5, 1.0, 0.5)
    assert before.interval == wilson_interval(40, 80) and after.interval == wilson_interval(80, 80)
    assert difference.interval is not None and difference.interval.low > 0 and found["m"].note == ""
    assert found["d"].note == NO_SAMPLE_SCORES
    assert found["d"].difference is not None and found["d"].difference.value == 1.0
    assert found["d"].difference.interval is None


def test_few_prompts_have_neither_intervals_nor_effects(tmp_path: Path) -> None:
    change = changes(write_run(tmp_path, n_prompts=6))["m"]
    assert (change.before, change.after, change.difference) == (Estimate(0.5), Estimate(1.0), Estimate(0.5))
    assert change.effect == ""


def test_corpus_score_that_is_no_mean_stands_beside_the_mean(tmp_path: Path) -> None:
    write_run(tmp_path, n_prompts=80)
    write_lines(
        tmp_path / "test_split_metrics.jsonl",
        [{"epoch": 0, "metrics": {"m": 0.4}}, {"epoch": 3, "metrics": {"m": 1.0}}],
    )
    found = changes(tmp_path)
    assert found["m"].note == NOT_A_MEAN
    assert found["m"].before is not None and found["m"].before.value == 0.4 and found["m"].before.interval is None
    mean = found["m, mean of the replies"]
    assert mean.before is not None and mean.before.value == 0.5 and mean.before.interval is not None


def test_rewards_of_replies_come_first(tmp_path: Path) -> None:
    write_run(tmp_path)
    for epoch in (0, 3):
        rows = [prediction(i, "a", m=[0.5, 1.0][epoch > 0], reward=float(i + epoch)) for i in range(80)]
        write_json(tmp_path / f"epoch_{epoch}_test_split_predictions.json", rows)
    found = changes(tmp_path)
    assert list(found) == ["reward", "m", "d"]
    difference = found["reward"].difference
    assert difference is not None and difference.interval is not None
    assert difference.value == pytest.approx(3.0) and difference.interval.low == pytest.approx(3.0)


def test_run_that_was_killed_has_its_first_evaluation_alone(tmp_path: Path) -> None:
    write_run(tmp_path, n_prompts=80)
    write_lines(tmp_path / "test_split_metrics.jsonl", [{"epoch": 0, "metrics": {"m": 0.5, "d": 7.0}}])
    (tmp_path / "epoch_3_test_split_predictions.json").unlink()
    found = changes(tmp_path)
    assert found["m"].before is not None and found["m"].before.interval is not None
    assert found["m"].after is None and found["m"].difference is None
    assert found["d"].before is not None and found["d"].before.value == 7.0


@pytest.mark.parametrize(
    ("key", "low", "high", "effect"),
    [
        ("reward", 0.1, 0.3, "better"),
        ("reward", -0.3, -0.1, "worse"),
        ("loss/reference", -0.3, -0.1, "better"),
        ("length/words", 0.1, 0.3, "other"),
        ("reward", -0.1, 0.3, ""),
    ],
)
def test_significant_changes_have_an_effect(key: str, low: float, high: float, effect: str) -> None:
    change = MetricChange(key, None, None, Estimate((low + high) / 2, Interval(low, high)))
    assert described([change], {}, {})[0].effect == effect
    assert described([MetricChange(key, None, None, None)], {}, {})[0].effect == ""


def test_repeats_are_named_in_the_line_of_what_they_repeat() -> None:
    found = [MetricChange(key, None, None, None) for key in ("reward", "reward/a", "m")]
    kept = described(found, {"reward/a": "reward", "m": "not among them"}, {})
    assert [(change.key, change.repeats) for change in kept] == [("reward", ("reward/a",)), ("m", ())]
