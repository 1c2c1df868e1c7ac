"""Runs the trials of a sweep, several at a time, and stops those that are pruned."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl4dialog.core.errors import RL4DialogError
from rl4dialog.experiments.own_process import ending_together, shared_cores, start_command
from rl4dialog.experiments.sweep.space import Values, shown_values
from rl4dialog.experiments.sweep.trials import (
    Objective,
    Trial,
    TrialResult,
    TrialSource,
    best_trial,
    evaluations,
    measure,
    run_names,
)

_POLL_S = 0.5


def run_trials(
    source: TrialSource,
    folder: Path,
    arguments: Sequence[str],
    objective: Objective,
    seeds: Sequence[int] = (),
    n_jobs: int = 1,
) -> int:
    """Train all trials of a source, each run in its own process.

    The output of a run is appended to ``<run>.txt`` next to its folder. If a trial fails, the error is printed and the
    others continue.

    Args:
        source: Source of trials, which records their results.
        folder: Folder of the sweep, which contains the run folders.
        arguments: Arguments of ``rl4dialog train`` that all runs share.
        objective: Metric to report.
        seeds: Seeds of each trial, trained one after another; by default the config's.
        n_jobs: Number of runs at the same time.

    Returns:
        Exit code: 0 if no trial failed here, otherwise that of the first one that did.

    Raises:
        ConfigError: If the evaluations do not have the metric.
        SystemExit: If the sweep was interrupted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    running: dict[str, _RunningTrial] = {}
    processes: list[subprocess.Popen[bytes]] = []
    first_failure = 0
    with ending_together(processes):
        while True:
            while len(running) < n_jobs and (trial := source.next()) is not None:
                _say(f"{trial.name} starts: {_shown(trial.values)}")
                running[trial.name] = _RunningTrial(
                    trial, folder, arguments, objective, seeds, shared_cores(n_jobs), processes
                )
            if not running:
                return first_failure
            time.sleep(_POLL_S)
            for current in list(running.values()):
                try:
                    result = current.step(source)
                except RL4DialogError as error:
                    current.process.terminate()
                    current.process.wait()
                    source.finish(current.trial, current.failed(str(error)))
                    raise
                if result is None:
                    continue
                del running[current.trial.name]
                source.finish(current.trial, result)
                first_failure = first_failure or current.exit_code
                _say(_described(result, source, objective))


class _RunningTrial:
    """A trial in training: its runs start one after another, one per seed."""

    def __init__(
        self,
        trial: Trial,
        folder: Path,
        arguments: Sequence[str],
        objective: Objective,
        seeds: Sequence[int],
        environment: Mapping[str, str],
        processes: list[subprocess.Popen[bytes]],
    ) -> None:
        self.trial, self.exit_code = trial, 0
        self._arguments, self._metric, self._seeds = arguments, objective.metric, seeds
        self._environment, self._processes = environment, processes
        self._runs = [folder / name for name in run_names(trial.name, seeds)]
        self._n_done, self._n_reported, self._is_pruned = 0, 0, False
        self._start()

    def step(self, source: TrialSource) -> TrialResult | None:
        """Report new evaluations, and start the next run if one has ended; returns the result once the last has."""
        code = self.process.poll()
        if code is None:
            self._report(source)
            return None
        self._processes.remove(self.process)
        if code and self._is_pruned:
            return TrialResult(self.trial.name, self.trial.values, "pruned", runs=self._runs)
        if code:
            self.exit_code = code
            return self.failed(f"exit code {code}: {self._last_line()}")
        self._n_done += 1
        if self._n_done < len(self._runs):
            self._start()
            return None
        result = measure(self.trial, self._runs, self._metric)
        self.exit_code = int(result.state == "failed")
        return result

    def failed(self, error: str) -> TrialResult:
        return TrialResult(self.trial.name, self.trial.values, "failed", error=error, runs=self._runs)

    def _start(self) -> None:
        run = self._runs[self._n_done]
        values = [text for key, value in self.trial.values.items() for text in ("--set", f"{key}={value}")]
        if self._seeds:
            values += ["--set", f"seed={self._seeds[self._n_done]}"]
        how = ["--overwrite"] if self.trial.is_new else ["--resume", "auto"]
        command = ["train", *self._arguments, *values, "--experiment_name", run.name, *how]
        self.process = start_command(command, environment=self._environment, output=_output(run))
        self._processes.append(self.process)

    def _report(self, source: TrialSource) -> None:
        """Report evaluations of the first seed; those of different seeds are not comparable."""
        if self._metric is None or self._n_done or self._is_pruned:
            return
        found = evaluations(self._runs[0], self._metric)
        for iteration, value in found[self._n_reported :]:
            self._n_reported += 1
            if source.report(self.trial, iteration, value):
                self._is_pruned = True
                self.process.terminate()
                return

    def _last_line(self) -> str:
        path = _output(self._runs[self._n_done])
        lines = [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error:")]
        return f"{(errors or lines or [''])[-1]} (see {path})"


def _output(run: Path) -> Path:
    return run.with_name(f"{run.name}.txt")


def _described(result: TrialResult, source: TrialSource, objective: Objective) -> str:
    if result.state == "failed":
        return f"{result.name} failed: {result.error}"
    if result.state == "pruned":
        return f"{result.name} was pruned"
    if objective.metric is None:
        return f"{result.name} is complete"
    best = best_trial(source.results(), objective)
    so_far = f"; best so far: {best.value:.4g} ({best.name})" if best is not None else ""
    return f"{result.name}: {objective.metric} {result.value:.4g}{so_far}"


def _shown(values: Values) -> str:
    names = [key.rsplit(".", 1)[-1] for key in values]
    return ", ".join(f"{name}={value}" for name, value in zip(names, shown_values(values), strict=True))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
