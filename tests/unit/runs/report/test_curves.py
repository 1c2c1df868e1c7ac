"""What is drawn of a run."""

import math

import pytest
from run_files import prediction, write_json, write_lines, write_run

from rl4dialog.runs.reading import read_run
from rl4dialog.runs.report.curves import evaluation_curves, iteration_curve, panels, positions, remaining_keys, x_axes


def test_panels_are_those_of_numbers_that_vary(tmp_path):
    run = read_run(write_run(tmp_path))
    found = {panel.title: panel for panel in panels([run])}
    assert list(found) == ["Task reward", "Reward parts", "KL to the reference", "Entropy"]
    assert found["Reward parts"].keys == {"meteor": "rollout/reward/meteor", "length": "rollout/reward/length"}
    entropy = iteration_curve(run, found["Entropy"], "entropy", "train/entropy_loss")
    assert entropy.y == pytest.approx([1.9, 1.8, 1.7]), "it is logged as a loss"
    assert entropy.x["iterations"] == [1, 2, 3] and entropy.x["seconds of training"] == [5, 10, 15]
    drawn = {key for panel in found.values() for key in panel.keys.values()}
    assert {"rollout/values", "rollout/kl_coeff"} < {*remaining_keys(run, drawn)} - {"rollout/kl"}
    rows = [{"iteration": i, "rollout/ended_by/agent": 0.1 * i, "rollout/ended_by/length": 0.0} for i in (1, 2)]
    write_lines(tmp_path / "rollout_info.jsonl", rows)
    ends = panels([read_run(tmp_path)])[0]
    assert (ends.title, ends.keys) == ("Ends of conversations", {"agent": "rollout/ended_by/agent"})


def test_weights_are_drawn_if_they_change(tmp_path):
    write_run(tmp_path)
    rows = [{"iteration": i, "rollout/reward/a": 1.0, "rollout/reward/a/weight": 0.5 / i} for i in (1, 2)]
    write_lines(tmp_path / "rollout_info.jsonl", rows)
    titles = {panel.title: panel.keys for panel in panels([read_run(tmp_path)])}
    assert titles["Reward part weights"] == {"a": "rollout/reward/a/weight"}


def test_evaluations_have_intervals_of_their_own_replies(tmp_path):
    write_run(tmp_path)
    scores = {0: (0, 0, 1, 1) * 20, 1: (1, 0, 1, 1) * 20, 2: (1, 1, 1, 1) * 20}
    metrics = [{"epoch": epoch, "metrics": {"m": sum(values) / 80, "d": 3.0}} for epoch, values in scores.items()]
    write_lines(tmp_path / "val_split_metrics.jsonl", metrics)
    for epoch, values in scores.items():
        rows = [prediction(i, "a", m=value) for i, value in enumerate(values)]
        write_json(tmp_path / f"epoch_{epoch}_val_split_predictions.json", rows)
    m, d = evaluation_curves(read_run(tmp_path), "val")
    assert list(m.y) == [0.5, 0.75, 1.0]
    assert 0.35 < m.low[0] < 0.5 < m.high[0] < 0.65 and m.low[2] < m.high[2] == 1.0
    assert not d.low
    assert m.x == {"iterations": [0, 1, 2], "agent tokens": [0, 100, 200], "seconds of training": [0, 5, 10]}


def test_single_part_that_is_the_whole_reward_is_drawn_once(tmp_path):
    write_run(tmp_path)
    for part, has_parts in ((1.0, False), (0.5, True)):
        rows = [{"iteration": i, "rollout/task_reward": i, "rollout/reward/a": part * i} for i in (1, 2, 3)]
        write_lines(tmp_path / "rollout_info.jsonl", rows)
        titles = [panel.title for panel in panels([read_run(tmp_path)])]
        assert ("Reward parts" in titles) is has_parts and "Task reward" in titles


def test_turn_level_runs_are_drawn_over_timesteps_and_long_ones_over_hours(tmp_path):
    write_run(tmp_path)
    rows = [{"iteration": i, "rollout/timesteps": 10, "time/collect_s": 3600.0} for i in (1, 2, 3)]
    write_lines(tmp_path / "rollout_info.jsonl", rows)
    write_lines(tmp_path / "training_info.jsonl", [])
    (axes,) = x_axes([read_run(tmp_path)])
    assert positions(axes, [0, 2, 9]) == {
        "iterations": [0, 2, 9],
        "timesteps": [0, 20, pytest.approx(math.nan, nan_ok=True)],
        "hours of training": [0, 2, pytest.approx(math.nan, nan_ok=True)],
    }
