"""Trials: simultaneous runs, failures, seeds, pruning and results. The runs are written by hand."""

from pathlib import Path

import pytest
from child_commands import FakeProcess, replace_commands
from sweeps import result, write_run

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.features.experiments.sweep.running import Objective, Trial, best_trial, evaluations, measure, run_trials
from rl4dialog.features.experiments.sweep.space import parse_grid
from rl4dialog.features.experiments.sweep.study import Grid

TRIAL = Trial("t", {"a": "1"})


@pytest.fixture
def start(monkeypatch):
    """Replaces training by a function of the run's folder."""

    def install(train):
        return replace_commands(monkeypatch, lambda arguments, output: train(Path(str(output)).with_suffix("")))

    return install


def test_failed_trial_is_named_and_the_others_continue(tmp_path, start, capsys):
    def train(run):
        if run.name == "x_2":
            run.with_name("x_2.txt").write_text("starting\nerror: no memory\nbye\n")
            return FakeProcess(3)
        write_run(run, [1.0], [{"m": 0.0}, {"m": float(run.name[-1])}])
        return FakeProcess(0)

    commands = start(train)
    grid = Grid(parse_grid(["a.x=1,2,3"]))
    assert run_trials(grid, tmp_path / "s", ["--variant", "0"], Objective("m")) == 3
    assert " ".join(commands[0]) == "train --variant 0 --set a.x=1 --experiment_name x_1 --resume auto"
    states = [("complete", 1.0), ("failed", None), ("complete", 3.0)]
    assert [(result.state, result.value) for result in grid.results()] == states
    output = capsys.readouterr().err
    assert "x_2 failed: exit code 3: error: no memory (see " in output
    assert "x_3: m 3; best so far: 3 (x_3)" in output
    assert "error: 1 of 3 failed: x_2. The same command repeats what is not complete" in output


@pytest.mark.parametrize("n_polls", [1, 1000])
def test_trial_with_a_damaged_log_fails_and_the_others_continue(tmp_path, start, capsys, n_polls):
    def train(run):
        write_run(run, [1.0, 2.0], [{"m": 0.0}, {"m": 0.5}, {"m": float(run.name[-1])}])
        if run.name == "x_2":
            name = "rollout_info.jsonl" if n_polls == 1 else "val_split_metrics.jsonl"
            (run / name).write_text(f"[]\n{(run / name).read_text()}")
        return FakeProcess(0, n_polls if run.name == "x_2" else 2)

    start(train)
    grid = Grid(parse_grid(["a.x=1,2,3"]))
    assert run_trials(grid, tmp_path / "s", [], Objective("m")) == 1
    assert [each.state for each in grid.results()] == ["complete", "failed", "complete"]
    assert "must be a JSON object, not []" in capsys.readouterr().err


def test_failures_of_other_processes_count(tmp_path, start):
    start(lambda run: FakeProcess(0))
    grid = Grid(parse_grid(["a.x=1"]))
    grid.finish(grid.next(), result("x_1", state="failed"))
    assert run_trials(grid, tmp_path / "s", [], Objective("m")) == 1


def test_each_seed_is_trained_and_runs_are_simultaneous(tmp_path, start):
    def train(run):
        write_run(run, [1.0], [{"m": 0.0}, {"m": float(run.name[-1])}])
        return FakeProcess(0)

    commands = start(train)
    grid = Grid(parse_grid(["a.x=1,2"]))
    assert run_trials(grid, tmp_path / "s", [], Objective("m"), seeds=(4, 6), n_jobs=2) == 0
    names = [command[command.index("--experiment_name") + 1] for command in commands]
    assert names == ["x_1_seed_4", "x_2_seed_4", "x_1_seed_6", "x_2_seed_6"]
    assert [result.value for result in grid.results()] == [5.0, 5.0]


def test_pruned_trial_is_stopped_and_is_no_failure(tmp_path, start):
    reports = []

    class Pruning(Grid):
        def report(self, trial, iteration, value):
            reports.append((iteration, value))
            return value < 0.5

    def train(run):
        write_run(run, [1.0], [{"m": 0.0}, {"m": 0.6}, {"m": 0.4}, {"m": 0.9}])
        return FakeProcess(0, polls=1000)

    start(train)
    grid = Pruning(parse_grid(["a.x=1"]))
    assert run_trials(grid, tmp_path / "s", [], Objective("m")) == 0
    assert [result.state for result in grid.results()] == ["pruned"]
    assert reports == [(1, 0.6), (2, 0.4)]


def test_unknown_metric_stops_the_sweep(tmp_path, start):
    start(lambda run: (write_run(run, [1.0], [{"lexical/meteor": 0.0}]), FakeProcess(0, polls=1000))[1])
    grid = Grid(parse_grid(["a.x=1"]))
    with pytest.raises(ConfigError, match="no metric 'lexical/meteo'; did you mean 'lexical/meteor'"):
        run_trials(grid, tmp_path / "s", [], Objective("lexical/meteo"))
    assert [result.state for result in grid.results()] == ["failed"]


def test_result_is_the_mean_over_seeds_and_of_the_last_tenth(tmp_path):
    runs = [write_run(tmp_path / str(i), [0.0] * 18 + [1.0 + i, 2.0 + i], [{"m": 9.0}, {"m": 0.5 + i}]) for i in (0, 1)]
    found = measure(TRIAL, runs, "m")
    assert found.state == "complete" and found.value == pytest.approx(1.0)
    assert found.reward == pytest.approx(2.0) and found.kl == pytest.approx(1.95)

    found = measure(TRIAL, [write_run(tmp_path / "run", [1.0], [{"m": 1.0}, {"m": None}])], "m")
    assert (found.state, found.error) == ("failed", "m has no finite value")


def test_run_without_iterations_is_an_error_if_only_reward_and_kl_count(tmp_path):
    run = write_run(tmp_path / "run", [], [{"m": 1.0}, {"m": 1.0}])
    with pytest.raises(DataError, match="has no iteration with rollout/kl"):
        measure(TRIAL, [run], None)
    assert measure(TRIAL, [run], "m").kl is None


def test_evaluations_of_a_running_run_are_read_without_the_first(tmp_path):
    assert evaluations(tmp_path, "m") == []
    run = write_run(tmp_path / "run", [], [{"m": 1.0}, {"m": None}, {"m": 3.0}])
    with open(run / "val_split_metrics.jsonl", "a") as file:
        file.write('{"epoch": 3, "met')
    assert evaluations(run, "m") == [(2, 3.0)]
    with pytest.raises(ConfigError, match="--metric: the evaluations have no metric 'n' "):
        evaluations(run, "n")


def test_best_trial_is_complete_and_within_the_kl():
    numbers = {"a": (0.5, 0.1), "b": (0.9, 0.3), "c": (0.5, 0.1), "e": (0.1, None)}
    results = [result(name, value, kl=kl) for name, (value, kl) in numbers.items()]
    results.append(result("d", None, state="failed"))
    objectives = [Objective("m"), Objective("m", "minimize"), *(Objective("m", max_kl=kl) for kl in (0.2, 0.01))]
    found = [best_trial(results, objective) for objective in objectives]
    assert [best and best.name for best in found] == ["b", "e", "a", None]
