"""What the runs of a plan achieved, and statistics over few runs: curves at equal KL, sample efficiency, win rates."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.errors import DataError, nearest_hint
from rl4dialog.functional.statistics import Estimate
from rl4dialog.runs.reading import Run, pair, read_run
from rl4dialog.runs.report.metrics import student_interval
from rl4dialog.runs.run_folder import read_references, read_result, write_text

Differences = Mapping[str, Sequence[float]]

_TIMES = ("time/collect_s", "time/generate_s", "time/evaluate_s", "time/score_s", "time/partner_s", "time/update_s")
_KL_WINDOW = 3
"""Iterations over which the KL of an evaluation is averaged: a rollout's KL is noisy."""


@dataclass(frozen=True)
class Outcome:
    """Numbers of one complete run of a group.

    ``explained_variance`` is the share of the variance of returns that the critic explains, in the rollouts before the
    first step of the policy; ``None`` without a critic.
    """

    label: str
    seed: int
    before: dict[str, float]  # test metrics before training
    after: dict[str, float]
    references: dict[str, float]  # test metrics of the reference replies, if there are any
    kls: list[float]  # KL to the reference per token, in nats, at each evaluation of the validation split
    curves: dict[str, list[float]]  # validation metrics at the same evaluations
    rewards: list[float]  # mean task reward of each iteration's rollouts
    tokens: list[float]  # agent tokens of each iteration's rollouts
    explained_variance: float | None
    hours: float  # of rollouts and updates, without evaluations
    changes: dict[str, list[float]] = field(default_factory=dict)  # of the win rate's metrics, for each test sample


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of the complete runs of a plan, and names of those that failed or are not complete."""

    done: list[Outcome]
    failed: list[str] = field(default_factory=list)

    def of(self, label: str) -> list[Outcome]:
        """Complete runs of a group."""
        return [outcome for outcome in self.done if outcome.label == label]

    def labels(self) -> list[str]:
        """Labels of groups with complete runs."""
        return list(dict.fromkeys(outcome.label for outcome in self.done))


def read_outcome(label: str, seed: int, folder: Path, keys: Sequence[str], sample_keys: Sequence[str] = ()) -> Outcome:
    """Read a complete run: the metrics of ``keys``, and for each test sample the change of those of ``sample_keys``."""
    result, run = read_result(folder)["test"], read_run(folder)
    missing = [key for key in keys if result["after"].get(key) is None]
    if missing:
        raise DataError(
            f"the run {folder} has no test metric {missing[0]!r}{nearest_hint(missing[0], result['after'])} (it has: "
            f"{', '.join(sorted(result['after']))}); correct metrics in the plan, and write the page with --page_only"
        )
    epochs, val = run.epochs("val"), run.metrics.get("val", {})
    return Outcome(
        label,
        seed,
        {key: result["before"].get(key, math.nan) for key in keys},
        {key: result["after"][key] for key in keys},
        {key: value for key, value in read_references(folder).items() if key in keys},
        kl_curve(run, epochs),
        {key: [val.get(epoch, {}).get(key, math.nan) for epoch in epochs] for key in keys},
        run.column("rollout/task_reward"),
        run.column("rollout/tokens"),
        _explained_variance(run),
        sum(value for key in _TIMES for value in run.column(key) if not math.isnan(value)) / 3600,
        score_differences(folder, sample_keys) if sample_keys else {},
    )


def kl_curve(run: Run, epochs: Sequence[int]) -> list[float]:
    """KL after each of these iterations: the mean over the rollouts around it; 0 before training."""
    kls = run.column("rollout/kl")
    # The rollout of iteration i + 1 is sampled from the policy after iteration i.
    near = {epoch: kls[max(0, epoch + 1 - _KL_WINDOW) : epoch + 1] for epoch in epochs if epoch}
    return [sum(near[epoch]) / len(near[epoch]) if near.get(epoch) else 0.0 for epoch in epochs]


def _explained_variance(run: Run) -> float | None:
    """Explained variance in the iteration of the policy's first step. The critic has not learned from its rollouts."""
    n_warmup = run.config.get("alg", {}).get("args", {}).get("critic_warmup_iters", 0)
    first = run.iterations[n_warmup] if n_warmup < len(run.iterations) else {}
    return first.get("train/explained_variance") if "train/value_loss" in first else None


def write_outcomes(outcomes: Outcomes, path: Path) -> None:
    """Write all numbers as JSON."""
    write_text(path, json.dumps(asdict(outcomes), indent=1) + "\n")


def score_differences(folder: Path, keys: Sequence[str]) -> dict[str, list[float]]:
    """Change of scores by training in a complete run, for each test sample; NaN where it lacks one of them."""
    run = read_run(folder)
    epochs = run.epochs("test")
    found = [run.predictions("test", epoch) for epoch in (epochs[0], epochs[-1])] if len(epochs) > 1 else []
    if len(found) < 2 or found[0] is None or found[1] is None:
        raise DataError(f"the run {folder} has no test predictions before and after training")
    before, after = pair(found[0], found[1])
    if missing := [key for key in keys if key not in before.scores or key not in after.scores]:
        known = ", ".join(sorted(before.scores))
        raise DataError(f"the run {folder} has no scores of single samples under {missing[0]!r} (it has: {known})")
    changes = np.stack([after.scores[key] - before.scores[key] for key in keys])
    changes[:, np.isnan(changes).any(axis=0)] = np.nan
    return {key: row.tolist() for key, row in zip(keys, changes, strict=True)}


def win_rate(runs: Sequence[Differences], score: str, length: str | None = None) -> Estimate:
    """Share of samples that score higher after training than before; a tie counts half.

    With ``length``, what the change of length explains is removed from each change of the score: its slope in a least
    squares regression with intercept over the samples of a run. This estimates the win rate at equal length, as
    AlpacaEval's length-controlled win rate does with a logistic regression (Dubois et al. 2024, arXiv 2404.04475). The
    interval is Student's, over runs and samples: the variances of the means over either are added, because all runs
    have the same samples. Without a second run, there is none.
    """
    scores = np.array([run[score] for run in runs], dtype=float)
    lengths = np.zeros_like(scores) if length is None else np.array([run[length] for run in runs], dtype=float)
    won = _won(scores, lengths)
    by_run, by_sample = np.nanmean(won, axis=1), np.nanmean(won[:, ~np.isnan(won).all(axis=0)], axis=0)
    share = float(by_run.mean())
    return Estimate(share, student_interval(share, by_run, by_sample))


def _won(scores: NDArray[np.float64], lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """Which changes are positive at equal length: 1, 0, or 0.5 for ties; NaN if unknown. Shapes (runs, samples)."""
    known = ~np.isnan(scores)
    n_known = known.sum(axis=1, keepdims=True)
    changes, longer = np.where(known, scores, 0.0), np.where(known, lengths, 0.0)
    spread = np.where(known, longer - longer.sum(axis=1, keepdims=True) / n_known, 0.0)
    variance = (spread**2).sum(axis=1, keepdims=True)
    slope = (spread * changes).sum(axis=1, keepdims=True) / np.where(variance > 0, variance, 1.0)
    at_equal_length = changes - slope * longer
    return np.where(known, (at_equal_length > 0) + 0.5 * (at_equal_length == 0), np.nan)


def probability_of_improvement(ours: Sequence[float], others: Sequence[float]) -> Estimate:
    """Probability that a random run of one group is better than one of another; a tie counts half.

    This is the Mann-Whitney U statistic, divided by the number of pairs (Agarwal et al. 2021, arXiv 2108.13264). It has
    no interval, because over few runs that of the bootstrap covers far too seldom.
    """
    difference = np.subtract.outer(np.asarray(ours, dtype=float), np.asarray(others, dtype=float))
    return Estimate(float(((difference > 0) + 0.5 * (difference == 0)).mean()))


def at_kl(kls: Sequence[float], values: Sequence[float], kl: float) -> float:
    """A metric where a run's curve of KLs first reaches one, by linear interpolation; NaN if it stays below."""
    if kls and kls[0] >= kl:
        return float(values[0])
    curve = zip(kls, values, strict=True)
    for (kl_before, before), (kl_after, after) in itertools.pairwise(curve):
        if kl_after >= kl:
            return float(before + (kl - kl_before) / (kl_after - kl_before) * (after - before))
    return math.nan


def smoothed(values: Sequence[float], window: int = 3) -> list[float]:
    """Mean of each value and those before it, of at most ``window`` values."""
    return [float(np.mean(values[max(0, end - window) : end])) for end in range(1, len(values) + 1)]


def tokens_to_reward(rewards: Sequence[float], tokens: Sequence[float], level: float) -> float:
    """Tokens of all rollouts until the smoothed reward first reaches a level; NaN if it stays below."""
    found = zip(smoothed(rewards), np.cumsum(tokens), strict=True)
    return next((float(spent) for reward, spent in found if reward >= level), math.nan)
