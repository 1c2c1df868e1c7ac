"""Changes of each metric through training, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rl4dialog.functional.statistics import Estimate
from rl4dialog.runs.metric_directions import Direction, direction
from rl4dialog.runs.report.predictions import Predictions, pair
from rl4dialog.runs.report.runs import Run, read_run
from rl4dialog.runs.report.statistics import mean_intervals

NO_SAMPLE_SCORES = "There are no scores per reply, so there is no interval."
NOT_A_MEAN = "It is not the mean of the scores per reply, so there is no interval."


@dataclass(frozen=True)
class MetricChange:
    """A metric before and after training.

    Attributes:
        key: Key of the metric.
        before: Score before training and its interval over prompts, if measured.
        after: The same after training.
        difference: ``after`` minus ``before``, on the same prompts.
        note: Why there is no interval; empty if there is one.
        direction: Which values are better, if known.
        repeats: Keys of metrics with the same scores, which have no line of their own.
    """

    key: str
    before: Estimate | None
    after: Estimate | None
    difference: Estimate | None
    note: str = ""
    direction: Direction | None = None
    repeats: tuple[str, ...] = ()

    @property
    def effect(self) -> str:
        """``better`` or ``worse`` if the change is significant, ``other`` if the metric then has no direction."""
        interval = self.difference.interval if self.difference is not None else None
        if interval is None or 0 in interval:
            return ""
        return effect_of(interval.low, self.direction)


def metric_changes(run: Run, split: str, before: Predictions | None, after: Predictions | None) -> list[MetricChange]:
    """Return the change of every metric between the first and the last evaluation of a split.

    An interval needs scores of at least ``MIN_SAMPLES`` replies whose mean is the metric. If their mean is a different
    number (a corpus BLEU is not the mean of sentence BLEUs), it gets a line of its own. Rewards of replies come first.

    Args:
        run: The evaluated run.
        split: The split.
        before: Replies of the first evaluation.
        after: Replies of the last evaluation.
    """
    epochs = run.epochs(split)
    metrics = run.metrics.get(split, {})
    old = metrics.get(epochs[0], {}) if epochs else {}
    new = metrics.get(epochs[-1], {}) if len(epochs) > 1 else {}
    means = _mean_changes(before, after)
    changes = [change for key, change in means.items() if key not in old | new]
    for key in dict.fromkeys([*new, *old]):
        mean = means.get(key)
        if mean is None:
            changes.append(_corpus_change(key, old, new, NO_SAMPLE_SCORES))
        elif agrees(mean.before, old.get(key)) and agrees(mean.after, new.get(key)):
            changes.append(mean)
        else:
            changes.append(_corpus_change(key, old, new, NOT_A_MEAN))
            changes.append(MetricChange(f"{key}, mean of the replies", mean.before, mean.after, mean.difference))
    return changes


def before_and_after(run: Run, split: str) -> tuple[Predictions | None, Predictions | None]:
    """Predictions of the first and the last evaluation of a split."""
    epochs = run.epochs(split)
    if not epochs:
        return None, None
    return run.predictions(split, epochs[0]), run.predictions(split, epochs[-1]) if len(epochs) > 1 else None


def change_intervals(folder: Path) -> tuple[int, dict[str, Estimate]]:
    """Read the changes of a run's test metrics that have an interval, as its report shows them.

    Returns:
        The number of samples of which there are replies before and after, and the changes by metric key; 0 and none if
        the run has no such predictions.
    """
    run = read_run(folder)
    before, after = before_and_after(run, "test")
    if before is None or after is None:
        return 0, {}
    found = {each.key: each.difference for each in metric_changes(run, "test", before, after)}
    n_samples = len(pair(before, after)[0])
    return n_samples, {key: each for key, each in found.items() if each is not None and each.interval is not None}


def described(
    changes: Sequence[MetricChange], repeats: Mapping[str, str], config: Mapping[str, Any]
) -> list[MetricChange]:
    """Add directions to changes, and remove those of metrics that repeat another one.

    Args:
        changes: Changes of metrics.
        repeats: Keys of metrics that repeat another one, and which one.
        config: The run's config, which may name directions.
    """
    found = []
    for change in changes:
        if repeats.get(change.key) in {other.key for other in changes}:
            continue
        same = tuple(key for key, kept in repeats.items() if kept == change.key)
        found.append(replace(change, direction=direction(change.key, config), repeats=same))
    return found


def effect_of(difference: float, better: Direction | None) -> str:
    """Name the effect of a significant difference: ``better``, ``worse``, or ``other`` without a direction."""
    if better is None:
        return "other"
    return "better" if (difference > 0) == (better == "higher") else "worse"


def mean_estimates(predictions: Predictions) -> dict[str, Estimate]:
    """Mean and interval of each score per reply of an evaluation."""
    if not predictions.scores:
        return {}
    scores = np.stack(list(predictions.scores.values()), axis=1)
    intervals = mean_intervals(scores)
    return {
        key: Estimate(float(np.nanmean(values)), interval)
        for (key, values), interval in zip(predictions.scores.items(), intervals, strict=True)
    }


def _mean_changes(before: Predictions | None, after: Predictions | None) -> dict[str, MetricChange]:
    """Changes computed from the scores per reply."""
    if before is None or after is None:
        first, last = ({} if one is None else mean_estimates(one) for one in (before, after))
        return {key: MetricChange(key, first.get(key), last.get(key), None) for key in {**first, **last}}
    before, after = pair(before, after)
    keys = [key for key in after.scores if key in before.scores]
    if not keys or not len(before):
        return {}
    old, new = (np.stack([predictions.scores[key] for key in keys], axis=1) for predictions in (before, after))
    columns = np.concatenate([old, new, new - old], axis=1)
    intervals = mean_intervals(np.concatenate([old, new], axis=1)) + mean_intervals(new - old, are_differences=True)
    estimates = [
        Estimate(float(np.nanmean(values)) if not np.isnan(values).all() else math.nan, interval)
        for values, interval in zip(columns.T, intervals, strict=True)
    ]
    thirds = zip(keys, estimates, estimates[len(keys) :], estimates[2 * len(keys) :], strict=False)
    return {key: MetricChange(key, first, second, third) for key, first, second, third in thirds}


def agrees(estimate: Estimate | None, corpus: float | None) -> bool:
    """Whether a corpus score equals the mean of the scores per reply, so that its interval applies."""
    if estimate is None or corpus is None:
        return estimate is None and corpus is None
    return math.isclose(estimate.value, corpus, rel_tol=1e-3, abs_tol=1e-6)


def _corpus_change(key: str, old: Mapping[str, float], new: Mapping[str, float], note: str) -> MetricChange:
    before = Estimate(old[key]) if key in old else None
    after = Estimate(new[key]) if key in new else None
    difference = Estimate(after.value - before.value) if before is not None and after is not None else None
    return MetricChange(key, before, after, difference, note)
