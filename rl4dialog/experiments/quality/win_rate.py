"""Win rate of trained models against their start, by a score of each conversation, with length held equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.errors import DataError
from rl4dialog.functional.statistics import Estimate
from rl4dialog.runs.report.predictions import pair
from rl4dialog.runs.report.runs import read_run
from rl4dialog.runs.report.statistics import student_interval

Differences = Mapping[str, Sequence[float]]


def score_differences(folder: Path, keys: Sequence[str]) -> dict[str, list[float]]:
    """Change of scores by training, for each test sample that has all of them.

    Args:
        folder: Folder of a complete run.
        keys: Metric keys.
    """
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

    Args:
        runs: Differences of each run, by key, NaN where a sample has none. All runs have the same samples.
        score: Key of the score.
        length: Key of the length.
    """
    scores = np.array([run[score] for run in runs], dtype=float)
    lengths = np.zeros_like(scores) if length is None else np.array([run[length] for run in runs], dtype=float)
    won = _won(scores, lengths)
    by_run, by_sample = np.nanmean(won, axis=1), np.nanmean(won[:, ~np.isnan(won).all(axis=0)], axis=0)
    share, means = float(by_run.mean()), [each for each in (by_run, by_sample) if len(each) > 1]
    parts = [(float(each.var(ddof=1)) / len(each), len(each) - 1) for each in means]
    return Estimate(share, student_interval(share, *parts) if len(parts) == 2 else None)


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
