"""Simultaneous runs of trials: failures, seeds and pruning. The runs are written by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sweeps import write_run

from rl4dialog.core.errors import ConfigError
from rl4dialog.experiments.sweep import running as module
from rl4dialog.experiments.sweep.grid import Grid
from rl4dialog.experiments.sweep.running import run_trials
from rl4dialog.experiments.sweep.space import parse_grid
from rl4dialog.experiments.sweep.trials import Objective, Trial


class FakeProcess:
    """A run that is done at its second poll, or once it is terminated."""

    def __init__(self, code: int, polls: int = 2) -> None:
        self.code, self.polls = code, polls

    def poll(self) -> int | None:
        self.polls -= 1
        return None if self.polls > 0 else self.code

    def terminate(self) -> None:
        self.code, self.polls = 75, 0

    kill = terminate

    def wait(self) -> int:
        return self.code


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Replaces training by a function of the run's folder."""

    def install(train: Callable[[Path], FakeProcess]) -> list[list[str]]:
        commands = []

        def start_command(arguments: list[str], environment: dict[str, str], output: Path) -> FakeProcess:
            commands.append(arguments)
            return train(output.with_suffix(""))

        monkeypatch.setattr(module, "start_command", start_command)
        monkeypatch.setattr(module, "_POLL_S", 0.001)
        return commands

    return install


def test_failed_trial_is_named_and_the_others_continue(
    tmp_path: Path, start: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(run: Path) -> FakeProcess:
        if run.name == "x_2":
            run.with_name("x_2.txt").write_text("starting\nerror: no memory\nbye\n")
            return FakeProcess(3)
        write_run(run, [1.0], [{"m": 0.0}, {"m": float(run.name[-1])}])
        return FakeProcess(0)

    commands = start(train)
    grid = Grid(parse_grid(["a.x=1,2,3"]))
    assert run_trials(grid, tmp_path / "s", ["--variant", "0"], Objective("m")) == 3
    assert commands[0] == [
        *("train", "--variant", "0", "--set", "a.x=1", "--experiment_name", "x_1", "--resume", "auto")
    ]
    assert [(result.state, result.value) for result in grid.results()] == [
        *[("complete", 1.0), ("failed", None), ("complete", 3.0)]
    ]
    output = capsys.readouterr().err
    assert "x_2 failed: exit code 3: error: no memory (see " in output
    assert "x_3: m 3; best so far: 3 (x_3)" in output


def test_each_seed_is_trained_and_runs_are_simultaneous(tmp_path: Path, start: Any) -> None:
    def train(run: Path) -> FakeProcess:
        write_run(run, [1.0], [{"m": 0.0}, {"m": float(run.name[-1])}])
        return FakeProcess(0)

    commands = start(train)
    grid = Grid(parse_grid(["a.x=1,2"]))
    assert run_trials(grid, tmp_path / "s", [], Objective("m"), seeds=(4, 6), n_jobs=2) == 0
    names = [command[command.index("--experiment_name") + 1] for command in commands]
    assert names == ["x_1_seed_4", "x_2_seed_4", "x_1_seed_6", "x_2_seed_6"]
    assert [result.value for result in grid.results()] == [5.0, 5.0]


def test_pruned_trial_is_stopped_and_is_no_failure(tmp_path: Path, start: Any) -> None:
    reports = []

    class Pruning(Grid):
        def report(self, trial: Trial, iteration: int, value: float) -> bool:
            reports.append((iteration, value))
            return value < 0.5

    def train(run: Path) -> FakeProcess:
        write_run(run, [1.0], [{"m": 0.0}, {"m": 0.6}, {"m": 0.4}, {"m": 0.9}])
        return FakeProcess(0, polls=1000)

    start(train)
    grid = Pruning(parse_grid(["a.x=1"]))
    assert run_trials(grid, tmp_path / "s", [], Objective("m")) == 0
    assert [result.state for result in grid.results()] == ["pruned"]
    assert reports == [(1, 0.6), (2, 0.4)]


def test_unknown_metric_stops_the_sweep(tmp_path: Path, start: Any) -> None:
    start(lambda run: (write_run(run, [1.0], [{"lexical/meteor": 0.0}]), FakeProcess(0, polls=1000))[1])
    grid = Grid(parse_grid(["a.x=1"]))
    with pytest.raises(ConfigError, match="no metric 'lexical/meteo'; did you mean 'lexical/meteor'"):
        run_trials(grid, tmp_path / "s", [], Objective("lexical/meteo"))
    assert [result.state for result in grid.results()] == ["failed"]


def test_interrupted_sweep_waits_for_its_runs_and_exits_as_they_do(
    tmp_path: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = FakeProcess(75, polls=1000)
    start(lambda run: process)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(SystemExit) as end:
        run_trials(Grid(parse_grid(["a.x=1"])), tmp_path / "s", [], Objective("m"))
    assert end.value.code == 75
