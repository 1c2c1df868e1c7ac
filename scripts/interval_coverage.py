"""Simulates how often the 95 % intervals of this toolkit cover, and prints the table of ``docs/metrics.md``.

    python scripts/interval_coverage.py              # some minutes on one core
    python scripts/interval_coverage.py --trials 100  # a quick look

Each cell draws data whose true value is known, computes the interval as the toolkit does, and counts how often the
interval contains the value. Rows in italics are methods that the toolkit does not use, for comparison. Bootstraps are
slow, and have a fifth of the trials.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rl4dialog.features.experiments.quality.outcomes import win_rate
from rl4dialog.functional.statistics import CONFIDENCE, Interval, bootstrap_intervals, wilson_interval
from rl4dialog.runs.report.metrics import mean_estimate, student_interval

Array = NDArray[np.float64]
Trial = Callable[[np.random.Generator, int], tuple[Interval | None, float]]
"""Draws data of a size; returns the interval and the true value."""

N_RESAMPLES = 300
FEW, MORE = (2, 3, 4, 5, 10, 20), (10, 20, 30, 40, 50, 100)
GROUPS = (5, 10, 15, 20, 50)


def normal(rng: np.random.Generator, n: int) -> Array:
    """Mean 0."""
    return rng.normal(size=n)


def skewed(rng: np.random.Generator, n: int) -> Array:
    """An exponential distribution of mean 0, which is far more skewed than metrics of runs."""
    return rng.exponential(size=n) - 1.0


def mean_of(draw: Callable[[np.random.Generator, int], Array], truth: float = 0.0) -> Trial:
    """Student's t interval of a mean."""
    return lambda rng, n: (mean_estimate(draw(rng, n)).interval, truth)


def bootstrapped_mean(rng: np.random.Generator, n: int) -> tuple[Interval | None, float]:
    """Percentile bootstrap of a mean, for comparison."""
    values = normal(rng, n)
    return bootstrap_intervals(lambda rows: [values[rows].mean()], n, n_resamples=N_RESAMPLES)[0], 0.0


def paired(draw: Callable[[np.random.Generator, int], Array]) -> Trial:
    """Student's t interval of a mean change of the same runs or samples."""

    def trial(rng: np.random.Generator, n: int) -> tuple[Interval | None, float]:
        before = draw(rng, n)
        return mean_estimate(0.5 * before + 0.3 + draw(rng, n) - before).interval, 0.3

    return trial


def welch(draw: Callable[[np.random.Generator, int], Array]) -> Trial:
    """Welch's interval of a difference of two groups, of which one spreads twice as much."""

    def trial(rng: np.random.Generator, n: int) -> tuple[Interval | None, float]:
        groups = draw(rng, n), 2.0 * draw(rng, n)
        return student_interval(float(groups[0].mean() - groups[1].mean()), *groups), 0.0

    return trial


def wins(rng: np.random.Generator, n: int) -> tuple[Interval | None, float]:
    """Win rate over runs that differ, and 100 samples that all runs share."""
    scores = 0.2 * rng.normal(size=(n, 1)) + 0.5 * rng.normal(size=(1, 100)) + rng.normal(size=(n, 100))
    return win_rate([{"s": each} for each in scores.tolist()], "s").interval, 0.5


def improvement(rng: np.random.Generator, n: int) -> tuple[Interval | None, float]:
    """Percentile bootstrap of the probability of improvement, for comparison."""
    groups = normal(rng, n) + 1.0, normal(rng, n)
    ours, others = (each[rng.integers(n, size=(N_RESAMPLES, n))] for each in groups)
    found = (ours[:, :, np.newaxis] > others[:, np.newaxis, :]).mean(axis=(1, 2))
    return _percentiles(found), float(stats.norm.cdf(1.0 / math.sqrt(2.0)))


def share(p: float) -> Trial:
    """Wilson's interval of a share."""
    return lambda rng, n: (wilson_interval(float(rng.binomial(n, p)), n), p)


def change_of_share(n_up: float, n_down: float) -> Trial:
    """Student's t interval of the mean change of scores that are 0 or 1."""
    return mean_of(lambda rng, n: rng.choice([1.0, -1.0, 0.0], n, p=[n_up, n_down, 1 - n_up - n_down]), n_up - n_down)


def rank_correlation(levels: int | None, per_group: int = 1) -> Trial:
    """Percentile bootstrap, over groups, of Spearman's correlation with a rating, of some levels or none."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
        shared = np.repeat(rng.normal(size=(2, n)), per_group, axis=1)
        own = rng.normal(size=(2, n * per_group))
        score, noise = math.sqrt(0.5) * (shared + own)
        rating = 0.5 * score + math.sqrt(0.75) * noise
        if levels is None:
            return score, rating
        return score, np.digitize(rating, stats.norm.ppf(np.arange(1, levels) / levels)).astype(float)

    truth = float(stats.spearmanr(*draw(np.random.default_rng(0), 1_000_000 // per_group)).statistic)

    def trial(rng: np.random.Generator, n: int) -> tuple[Interval | None, float]:
        score, rating = draw(rng, n)
        groups = rng.integers(n, size=(N_RESAMPLES, n, 1))
        rows = (groups * per_group + np.arange(per_group)).reshape(N_RESAMPLES, -1)
        ranks = [stats.rankdata(each[rows], axis=1) for each in (score, rating)]
        x, y = (each - each.mean(axis=1, keepdims=True) for each in ranks)
        with np.errstate(invalid="ignore"):  # a resample whose ratings are all the same has no correlation
            return _percentiles((x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))), truth

    return trial


def _percentiles(resampled: Array) -> Interval:
    low, high = np.nanquantile(resampled, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return Interval(float(low), float(high))


def coverage(trial: Trial, n: int, trials: int, seed: int) -> float:
    """Share of trials whose interval contains the true value; none counts as a miss."""
    rng, held = np.random.default_rng([seed, n]), 0
    for _ in range(trials):
        interval, truth = trial(rng, n)
        held += interval is not None and truth in interval
    return held / trials


def print_table(title: str, sizes: Sequence[int], rows: Sequence[tuple[str, Trial]], trials: int, seed: int) -> None:
    """Print a table in Markdown."""
    print(f"| {title} | {' | '.join(map(str, sizes))} |\n|---{'|--:' * len(sizes)}|")
    for name, trial in rows:
        cells = [f"{coverage(trial, n, trials, seed):.2f}".lstrip("0") for n in sizes]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=3000, help="trials per cell (default: 3000)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    args = parser.parse_args()
    of_runs = [
        ("mean, normal", mean_of(normal)),
        ("mean, skewed", mean_of(skewed)),
        ("change of the same runs, normal", paired(normal)),
        ("change of the same runs, skewed", paired(skewed)),
        ("difference of two groups (Welch), normal", welch(normal)),
        ("difference of two groups (Welch), skewed", welch(skewed)),
        ("win rate over runs and 100 samples", wins),
    ]
    not_used = [
        ("*percentile bootstrap:* mean, normal", bootstrapped_mean),
        ("*percentile bootstrap:* probability of improvement", improvement),
    ]
    of_samples = [
        ("mean, skewed", mean_of(skewed)),
        ("change of the same samples, skewed", paired(skewed)),
        ("share of 0.5 (Wilson)", share(0.5)),
        ("share of 0.95 (Wilson)", share(0.95)),
        ("change of a share, 0.1 up, 0.05 down", change_of_share(0.1, 0.05)),
        ("change of a share, 0.1 up, 0.01 down", change_of_share(0.1, 0.01)),
        ("*Student's t:* share of 0.95", mean_of(lambda rng, n: rng.binomial(1, 0.95, n).astype(float), 0.95)),
    ]
    of_groups = [
        ("rank correlation, normal", rank_correlation(None)),
        ("rank correlation with ratings from 1 to 5", rank_correlation(5)),
        ("the same, three replies per conversation", rank_correlation(5, per_group=3)),
    ]
    print_table("runs", FEW, of_runs, args.trials, args.seed)
    print_table("runs", FEW, not_used, args.trials // 5, args.seed)
    print_table("samples", MORE, of_samples, args.trials, args.seed)
    print_table("conversations", GROUPS, of_groups, args.trials // 5, args.seed)


if __name__ == "__main__":
    main()
