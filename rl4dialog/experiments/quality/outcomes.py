"""What the runs of a plan achieved: test metrics, validation curves against KL, tokens and time."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rl4dialog.core.errors import DataError, nearest_hint
from rl4dialog.experiments.quality.win_rate import score_differences
from rl4dialog.runs.report.runs import Run, read_run
from rl4dialog.runs.results import read_references, read_result
from rl4dialog.runs.run_folder import write_text

_KL_WINDOW = 3
"""Iterations over which the KL of an evaluation is averaged: a rollout's KL is noisy."""


@dataclass(frozen=True)
class Outcome:
    """Numbers of one complete run.

    Attributes:
        label: Label of its group.
        seed: Its seed.
        before: Test metrics before training.
        after: Test metrics after training.
        references: Test metrics of the reference replies; empty if there are none.
        kls: KL to the reference per token, in nats, at each evaluation of the validation split.
        curves: Validation metrics at the same evaluations, by key.
        rewards: Mean task reward of each iteration's rollouts.
        tokens: Agent tokens of each iteration's rollouts.
        explained_variance: Share of the variance of returns that the critic explains, in the rollouts before the first
            step of the policy; ``None`` without a critic.
        hours: Time of rollouts and updates, without evaluations.
        changes: Change of the plan's win rate metrics by training, for each test sample; empty without ``win_rate``.
    """

    label: str
    seed: int
    before: dict[str, float]
    after: dict[str, float]
    references: dict[str, float]
    kls: list[float]
    curves: dict[str, list[float]]
    rewards: list[float]
    tokens: list[float]
    explained_variance: float | None
    hours: float
    changes: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of a plan.

    Attributes:
        done: Complete runs.
        failed: Names of runs that failed or are not complete.
    """

    done: list[Outcome]
    failed: list[str] = field(default_factory=list)

    def of(self, label: str) -> list[Outcome]:
        """Complete runs of a group."""
        return [outcome for outcome in self.done if outcome.label == label]

    def labels(self) -> list[str]:
        """Labels of groups with complete runs."""
        return list(dict.fromkeys(outcome.label for outcome in self.done))


def read_outcome(label: str, seed: int, folder: Path, keys: Sequence[str], sample_keys: Sequence[str] = ()) -> Outcome:
    """Read a complete run.

    Args:
        label: Label of its group.
        seed: Its seed.
        folder: The run folder.
        keys: Metric keys to keep.
        sample_keys: Metric keys whose change is kept for each test sample.
    """
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
        _seconds(run) / 3600,
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


def _seconds(run: Run) -> float:
    keys = ("time/collect_s", "time/generate_s", "time/evaluate_s", "time/score_s", "time/partner_s", "time/update_s")
    columns = itertools.chain.from_iterable(run.column(key) for key in keys)
    return sum(value for value in columns if not math.isnan(value))
