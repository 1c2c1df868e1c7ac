"""Runs in groups."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from run_files import CONFIG, write_run

from rl4dialog.runs.report.comparison import config_differences, group_curves, group_runs, metric_means
from rl4dialog.runs.report.curves import panels
from rl4dialog.runs.report.runs import Run, read_run


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    """Two seeds of one config, and one of another."""
    nlpo = {**CONFIG["alg"], "id": "nlpo", "args": {"top_mask": 0.9}}
    return [
        read_run(write_run(tmp_path / "ppo_0", n_iters=3, seed=0)),
        read_run(write_run(tmp_path / "nlpo", n_iters=3, reward=5.0, alg=nlpo)),
        read_run(write_run(tmp_path / "ppo_1", n_iters=5, reward=1.0, seed=1)),
    ]


def test_runs_that_differ_in_the_seed_are_one_group(runs: list[Run]) -> None:
    groups = group_runs(runs)
    assert [(group.label, group.seeds) for group in groups] == [("ppo", [0, 1]), ("nlpo", [0])]
    assert config_differences(groups) == {"alg.id": ["ppo", "nlpo"], "alg.args.top_mask": ["", "0.9"]}


def test_curve_is_the_mean_between_lowest_and_highest_as_far_as_the_shortest(runs: list[Run]) -> None:
    panel = panels(runs)[0]
    ppo, nlpo = group_curves(group_runs(runs), panel, "rollout/task_reward", over_tokens=True)
    assert list(ppo.x) == [100, 200, 300]
    assert list(ppo.y) == pytest.approx([0.6, 0.7, 0.8])
    assert list(ppo.low) == pytest.approx([0.1, 0.2, 0.3]) and list(ppo.high) == pytest.approx([1.1, 1.2, 1.3])
    assert list(nlpo.low) == list(nlpo.y) == list(nlpo.high)
    over_iterations = group_curves(group_runs(runs), panel, "rollout/task_reward", over_tokens=False)
    assert list(over_iterations[0].x) == [1, 2, 3]


def test_metrics_are_means_with_standard_errors(runs: list[Run]) -> None:
    runs[0].metrics["test"][3]["m"] = 0.8
    (before, after), (_, alone) = metric_means(group_runs(runs), "test")["m"]
    assert before is not None and (before.value, before.standard_error) == (0.5, 0.0)
    assert after is not None and after.value == pytest.approx(0.9)
    assert after.standard_error == pytest.approx(0.1414 / math.sqrt(2), abs=1e-4)
    assert alone is not None and alone.standard_error is None


def test_seed_that_was_run_twice_counts_once(runs: list[Run], tmp_path: Path) -> None:
    again = read_run(write_run(tmp_path / "ppo_0_again", n_iters=3, seed=0))
    runs[0].metrics["test"][3]["m"], again.metrics["test"][3]["m"] = 0.7, 0.9
    (_, after), _ = metric_means(group_runs([*runs, again]), "test")["m"]
    assert after is not None and after.n_seeds == 2
    assert after.value == pytest.approx(0.9) and after.standard_error == pytest.approx(0.1)
    (_, alone), _ = metric_means(group_runs([runs[0], again, runs[1]]), "test")["m"]
    assert alone is not None and alone.standard_error is None


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (("ppo_seed_0", "ppo_seed_1"), "ppo"),
        (("seed_0", "seed_1"), "parent"),
        (("a-10", "a-11"), "a"),
        (("gpt2a", "gpt2b"), "gpt2"),
    ],
)
def test_group_is_called_what_its_folders_have_in_common(tmp_path: Path, names: tuple[str, str], label: str) -> None:
    folders = [write_run(tmp_path / "parent" / name, seed=i) for i, name in enumerate(names)]
    assert [group.label for group in group_runs([read_run(folder) for folder in folders])] == [label]


def test_groups_of_the_same_name_get_numbers(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / part / "run", reward_fn={"id": part}) for part in ("a", "b")]
    assert [group.label for group in group_runs([read_run(folder) for folder in folders])] == ["run (1)", "run (2)"]
