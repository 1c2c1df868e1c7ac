"""Results of trials, and which one is the best."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweeps import result, write_run

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.experiments.sweep.trials import Objective, Trial, best_trial, evaluations, measure, run_names

TRIAL = Trial("t", {"a": "1"})


def test_result_is_the_mean_over_seeds_and_of_the_last_tenth(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(i), [0.0] * 18 + [1.0 + i, 2.0 + i], [{"m": 9.0}, {"m": 0.5 + i}]) for i in (0, 1)]
    found = measure(TRIAL, runs, "m")
    assert found.state == "complete" and found.value == pytest.approx(1.0)
    assert found.reward == pytest.approx(2.0) and found.kl == pytest.approx(1.95)


def test_result_without_a_finite_value_is_a_failure(tmp_path: Path) -> None:
    found = measure(TRIAL, [write_run(tmp_path / "run", [1.0], [{"m": 1.0}, {"m": None}])], "m")
    assert (found.state, found.error) == ("failed", "m has no finite value")


def test_run_without_iterations_is_an_error_if_only_reward_and_kl_count(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [], [{"m": 1.0}, {"m": 1.0}])
    with pytest.raises(DataError, match="has no iteration with rollout/kl"):
        measure(TRIAL, [run], None)
    assert measure(TRIAL, [run], "m").kl is None


def test_evaluations_of_a_running_run_are_read_without_the_first(tmp_path: Path) -> None:
    assert evaluations(tmp_path, "m") == []
    run = write_run(tmp_path / "run", [], [{"m": 1.0}, {"m": None}, {"m": 3.0}])
    with open(run / "val_split_metrics.jsonl", "a") as file:
        file.write('{"epoch": 3, "met')
    assert evaluations(run, "m") == [(2, 3.0)]
    with pytest.raises(ConfigError, match="--metric: the evaluations have no metric 'n' "):
        evaluations(run, "n")


def test_best_trial_is_complete_and_within_the_kl() -> None:
    results = [
        result("a", 0.5, kl=0.1),
        result("b", 0.9, kl=0.3),
        result("c", 0.5, kl=0.1),
        result("d", None, state="failed"),
        result("e", 0.1, kl=None),
    ]

    def best(objective: Objective) -> str | None:
        found = best_trial(results, objective)
        return found and found.name

    assert best(Objective("m")) == "b"
    assert best(Objective("m", "minimize")) == "e"
    assert best(Objective("m", "maximize", 0.2)) == "a"
    assert best(Objective("m", "maximize", 0.01)) is None


def test_each_seed_has_a_run() -> None:
    assert run_names("t", []) == ["t"]
    assert run_names("t", [0, 7]) == ["t_seed_0", "t_seed_7"]
