"""A trial of a sweep: its values, its runs and its result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from rl4dialog.core.errors import ConfigError, DataError, nearest_hint
from rl4dialog.experiments.sweep.space import Values
from rl4dialog.runs.report.runs import read_metrics, read_run
from rl4dialog.runs.results import read_result

SPLIT = "val"  # never test, which measures the selected config


@dataclass(frozen=True)
class Objective:
    """What trials are compared by.

    Attributes:
        metric: Metric of the val split after training; ``None`` only compares reward and KL.
        direction: ``maximize`` or ``minimize``.
        max_kl: Highest KL per token of a trial that can be the best.
    """

    metric: str | None
    direction: Literal["maximize", "minimize"] = "maximize"
    max_kl: float | None = None


@dataclass(frozen=True)
class Trial:
    """Values to train with.

    Attributes:
        name: Name of its run folder.
        values: Value of each key.
        is_new: Whether an earlier run in its folder is replaced; otherwise it is continued.
    """

    name: str
    values: Values
    is_new: bool = False


@dataclass(frozen=True)
class TrialResult:
    """Result of a trial; with several seeds, numbers are means over them.

    Attributes:
        name: Name of the trial.
        values: Value of each key.
        state: How it ended.
        value: The metric on the val split after training.
        kl: KL per token, a mean over the last tenth of the iterations.
        reward: Task reward per episode, likewise.
        error: Why it failed.
    """

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


def run_names(trial: str, seeds: Sequence[int]) -> list[str]:
    """Names of a trial's run folders, one per seed."""
    return [f"{trial}_seed_{seed}" for seed in seeds] if seeds else [trial]


def measure(trial: Trial, runs: list[Path], metric: str | None) -> TrialResult:
    """Read the result of a trial whose runs are complete."""
    value = None
    if metric is not None:
        found = [read_result(run)[SPLIT]["after"].get(metric) for run in runs]
        if not all(isinstance(number, (int, float)) and math.isfinite(number) for number in found):
            return TrialResult(trial.name, trial.values, "failed", error=f"{metric} has no finite value", runs=runs)
        value = sum(found) / len(found)
    numbers = [last_tenth(run) for run in runs]
    kl, reward = (_mean([pair[i] for pair in numbers]) for i in (0, 1))
    if metric is None and (kl is None or reward is None):
        raise DataError(f"the run {runs[0]} has no iteration with rollout/kl and rollout/task_reward in its logs")
    return TrialResult(trial.name, trial.values, "complete", value, kl, reward, runs=runs)


def last_tenth(run: Path) -> tuple[float, float]:
    """KL and task reward of a run, averaged over the last tenth of its iterations; NaN without rollouts."""
    log = read_run(run)
    curves = [log.column(key) for key in ("rollout/kl", "rollout/task_reward")]
    last = [values[-math.ceil(len(values) / 10) :] for values in curves]
    kl, reward = (sum(values) / len(values) if values else math.nan for values in last)
    return kl, reward


def evaluations(run: Path, metric: str) -> list[tuple[int, float]]:
    """Iteration and value of each evaluation of a run that may still be training, without the one before training."""
    found = read_metrics(run / f"{SPLIT}_split_metrics.jsonl", [])
    known = sorted({key for metrics in found.values() for key in metrics})
    if found and metric not in known:
        raise ConfigError(
            f"--metric: the evaluations have no metric {metric!r}{nearest_hint(metric, known)} "
            f"(they have: {', '.join(known) or 'none'})"
        )
    values = {epoch: metrics.get(metric, math.nan) for epoch, metrics in found.items()}
    return [(epoch, value) for epoch, value in values.items() if epoch and not math.isnan(value)]


def best_trial(results: Sequence[TrialResult], objective: Objective) -> TrialResult | None:
    """The complete trial with the best value and a KL of at most ``max_kl``; of equal ones the first."""
    sign = 1 if objective.direction == "maximize" else -1
    allowed = [
        result
        for result in results
        if result.state == "complete"
        and result.value is not None
        and (objective.max_kl is None or (result.kl is not None and result.kl <= objective.max_kl))
    ]
    return max(allowed, key=lambda result: sign * (result.value or 0.0), default=None)


def _mean(values: Sequence[float]) -> float | None:
    mean = sum(values) / len(values)
    return mean if math.isfinite(mean) else None
