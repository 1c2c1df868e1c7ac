"""The trials of a sweep: trained several at a time, stopped if they are pruned, and measured."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from rl4dialog.core.errors import ConfigError, DataError, RL4DialogError, nearest_hint
from rl4dialog.core.files import naming_errors
from rl4dialog.features.experiments.sweep.space import Values, shown_values
from rl4dialog.runs.reading import number, read_metrics, read_undamaged
from rl4dialog.runs.run_folder import read_result
from rl4dialog.training.own_process import RESUMED, Command, Task, ended, run_tasks, say, say_failed

SPLIT = "val"  # never test, which measures the selected config


@dataclass(frozen=True)
class Objective:
    """The metric of the val split by which trials of at most ``max_kl`` are compared; otherwise reward and KL."""

    metric: str | None
    direction: Literal["maximize", "minimize"] = "maximize"
    max_kl: float | None = None


@dataclass(frozen=True)
class Trial:
    """Values to train with; a new trial replaces an earlier run in its folder, otherwise that is continued."""

    name: str
    values: Values
    is_new: bool = False


@dataclass(frozen=True)
class TrialResult:
    """Means over the seeds of a trial: the metric after training, KL and reward of the last tenth of the iterations."""

    name: str
    values: Values
    state: Literal["complete", "pruned", "failed"]
    value: float | None = None
    kl: float | None = None
    reward: float | None = None
    error: str | None = None
    runs: list[Path] = field(default_factory=list)


class TrialSource(Protocol):
    """Where trials come from, and where their results go."""

    def next(self) -> Trial | None:
        """The next trial to train; ``None`` if there is none."""

    def report(self, trial: Trial, iteration: int, value: float) -> bool:
        """Report an evaluation during a trial; returns whether to stop it."""

    def finish(self, trial: Trial, result: TrialResult) -> None:
        """Record a result."""

    def results(self) -> list[TrialResult]:
        """All results so far, also those of other processes."""


def run_trials(
    source: TrialSource,
    folder: Path,
    arguments: Sequence[str],
    objective: Objective,
    seeds: Sequence[int] = (),
    n_jobs: int = 1,
) -> int:
    """Train all trials of a source, each run in its own process, with ``arguments`` of ``rl4dialog train``.

    The output of a run is appended to ``<run>.txt`` next to its folder. The seeds of a trial, by default the config's,
    are trained one after another. If a trial fails, the error is printed and the others continue. Returns the exit
    code: 0 if no trial of the source has failed, otherwise that of the first one that did.
    """
    folder.mkdir(parents=True, exist_ok=True)
    codes: dict[str, int] = {}

    def train(trial: Trial) -> Task:
        names = [key.rsplit(".", 1)[-1] for key in trial.values]
        say(f"{trial.name} starts: {', '.join(map('='.join, zip(names, shown_values(trial.values), strict=True)))}")
        runs = [folder / name for name in run_names(trial.name, seeds)]
        try:
            result, codes[trial.name] = yield from _train(source, trial, runs, arguments, objective.metric, seeds)
        except RL4DialogError as error:
            result = TrialResult(trial.name, trial.values, "failed", error=str(error), runs=runs)
            if not isinstance(error, DataError):  # of one run
                source.finish(trial, result)
                raise
        source.finish(trial, result)
        say(_described(result, source, objective))

    with naming_errors(folder, "; the same command continues the sweep"):  # its journal
        run_tasks(lambda: None if (trial := source.next()) is None else train(trial), n_jobs)
    results = source.results()
    failed = [each.name for each in results if each.state == "failed"]
    return say_failed({name: codes.get(name) or 1 for name in failed}, len(results))


def _train(
    source: TrialSource,
    trial: Trial,
    runs: Sequence[Path],
    arguments: Sequence[str],
    metric: str | None,
    seeds: Sequence[int],
) -> Generator[Command, int, tuple[TrialResult, int]]:
    """Train a trial, one run after another; returns its result, and the exit code if it failed."""
    whole = TrialResult(trial.name, trial.values, "complete", runs=list(runs))
    n_reported, is_pruned = 0, False

    def is_to_stop() -> bool:
        """Report new evaluations of the first seed; those of different seeds are not comparable."""
        nonlocal n_reported, is_pruned
        if metric is None or is_pruned:
            return False
        for iteration, value in evaluations(runs[0], metric)[n_reported:]:
            n_reported += 1
            if source.report(trial, iteration, value):
                is_pruned = True
                return True
        return False

    for i, run in enumerate(runs):
        values = [text for key, value in trial.values.items() for text in ("--set", f"{key}={value}")]
        values += ["--set", f"seed={seeds[i]}"] if seeds else []
        how = ["--overwrite"] if trial.is_new else RESUMED
        output = run.with_name(f"{run.name}.txt")
        command = ["train", *arguments, *values, "--experiment_name", run.name, *how]
        if code := (yield Command(command, output, (lambda: False) if i else is_to_stop)):
            if is_pruned:
                return replace(whole, state="pruned"), 0
            return replace(whole, state="failed", error=f"{ended(code)}: {_last_line(output)}"), code
    result = measure(trial, list(runs), metric)
    return result, int(result.state == "failed")


def _last_line(output: Path) -> str:
    lines = [line for line in output.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return f"{(errors or lines or [''])[-1]} (see {output})"


def _described(result: TrialResult, source: TrialSource, objective: Objective) -> str:
    if result.state != "complete" or objective.metric is None:
        states = {"failed": f"failed: {result.error}", "pruned": "was pruned", "complete": "is complete"}
        return f"{result.name} {states[result.state]}"
    best = best_trial(source.results(), objective)
    so_far = f"; best so far: {best.value:.4g} ({best.name})" if best is not None else ""
    return f"{result.name}: {objective.metric} {result.value:.4g}{so_far}"


def run_names(trial: str, seeds: Sequence[int]) -> list[str]:
    """Names of a trial's run folders, one per seed."""
    return [f"{trial}_seed_{seed}" for seed in seeds] if seeds else [trial]


def measure(trial: Trial, runs: list[Path], metric: str | None) -> TrialResult:
    """Read the result of a trial whose runs are complete."""
    value = None
    if metric is not None:
        found = [number(read_result(run)[SPLIT]["after"].get(metric)) for run in runs]
        if not all(map(math.isfinite, found)):
            return TrialResult(trial.name, trial.values, "failed", error=f"{metric} has no finite value", runs=runs)
        value = sum(found) / len(found)
    columns = zip(*map(last_tenth, runs), strict=True)
    kl, reward = (mean if math.isfinite(mean := sum(column) / len(column)) else None for column in columns)
    if metric is None and (kl is None or reward is None):
        raise DataError(f"the run {runs[0]} has no iteration with rollout/kl and rollout/task_reward in its logs")
    return TrialResult(trial.name, trial.values, "complete", value, kl, reward, runs=runs)


def last_tenth(run: Path) -> tuple[float, float]:
    """KL and task reward of a run, averaged over the last tenth of its iterations; NaN without rollouts."""
    log = read_undamaged(run)
    curves = [log.column(key) for key in ("rollout/kl", "rollout/task_reward")]
    last = [values[-math.ceil(len(values) / 10) :] for values in curves]
    kl, reward = (sum(values) / len(values) if values else math.nan for values in last)
    return kl, reward


def evaluations(run: Path, metric: str) -> list[tuple[int, float]]:
    """Iteration and value of each evaluation of a run that may still be training, without the one before training."""
    found = read_metrics(run / f"{SPLIT}_split_metrics.jsonl", [])
    known = sorted({key for metrics in found.values() for key in metrics})
    if found and metric not in known:
        hint = f"{nearest_hint(metric, known)} (they have: {', '.join(known) or 'none'})"
        raise ConfigError(f"--metric: the evaluations have no metric {metric!r}{hint}")
    values = {epoch: metrics.get(metric, math.nan) for epoch, metrics in found.items()}
    return [(epoch, value) for epoch, value in values.items() if epoch and not math.isnan(value)]


def best_trial(results: Sequence[TrialResult], objective: Objective) -> TrialResult | None:
    """The complete trial with the best value and a KL of at most ``max_kl``; of equal ones the first."""
    sign, limit = 1 if objective.direction == "maximize" else -1, objective.max_kl
    complete = [result for result in results if result.state == "complete" and result.value is not None]
    allowed = [each for each in complete if limit is None or (each.kl is not None and each.kl <= limit)]
    return max(allowed, key=lambda result: sign * (result.value or 0.0), default=None)
