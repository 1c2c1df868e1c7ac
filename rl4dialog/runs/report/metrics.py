"""Metrics of runs: which values are better, which repeat another, and how much they changed, with intervals.

How often the intervals cover was simulated (``scripts/interval_coverage.py``); ``docs/comparing.md`` has the table.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rl4dialog.functional.statistics import CONFIDENCE, Estimate, Interval, wilson_interval
from rl4dialog.runs.reading import Predictions, Run, pair, read_run

MIN_SAMPLES = 50
"""Fewer samples get no interval and no verdict: scores of samples can be skewed, and Student's t then covers less."""
REWARD_KEY, RETURN_KEYS = "reward", ("conversation/return", "episode/return")
NO_SAMPLE_SCORES = "There are no scores per reply, so there is no interval."
NOT_A_MEAN = "It is not the mean of the scores per reply, so there is no interval."

Direction = Literal["higher", "lower"]

# The first pattern that matches counts.
_DIRECTIONS: tuple[tuple[str, Direction], ...] = (
    ("reward", "higher"),
    ("reward/*", "higher"),
    ("*/return", "higher"),
    ("*/success", "higher"),
    ("success_in_domain/*", "higher"),
    ("conversation/reward_model", "higher"),
    ("conversation/rank", "lower"),
    ("conversation/malformed", "lower"),
    ("conversation/invalid_move", "lower"),
    ("conversation/unparsed", "lower"),
    ("conversation/acts_per_turn", "lower"),
    *((f"conversation/{key}", "higher") for key in ("complete", "match", "inform_f1")),
    ("lexical/ter", "lower"),
    ("lexical/*", "higher"),
    ("semantic/*", "higher"),
    ("table_to_text/*", "higher"),
    ("intent/accuracy", "higher"),
    ("consistency/persona_contradiction", "lower"),
    ("consistency/*", "higher"),
    ("persona_ranking/*", "higher"),
    ("goal_followed", "higher"),
    ("synthetic/*", "higher"),
    ("fluency_metrics/*", "lower"),
    ("diversity_metrics/self_bleu", "lower"),
    ("diversity_metrics/seq-rep-*", "lower"),
    ("diversity_metrics/distinct-*", "higher"),
    ("diversity_metrics/entropy-*", "higher"),
    ("conversation_diversity/distinct-*", "higher"),
    ("conversation_diversity/*", "lower"),
    ("rudeness/polite", "higher"),
    ("rudeness/*", "lower"),
    ("shortest_path/illegal", "lower"),
    ("shortest_path/*", "higher"),
    ("task/turns_of_success", "lower"),
    ("task/acts_per_turn", "lower"),
    *((f"task/{key}", "higher") for key in ("complete", "match", "book", "inform_*", "goals_followed")),
    *((f"task/{key}", "higher") for key in ("p@*", "r@*", "mrr", "potential")),
    ("loss/*", "lower"),
    ("*/log_loss", "lower"),
    ("*/calibration_error", "lower"),
    ("agreement/mse", "lower"),
    ("agreement/*", "higher"),
    ("preference/accuracy", "higher"),
    ("q_rank", "higher"),
)


def direction(key: str, config: Mapping[str, Any] | None = None) -> Direction | None:
    """Which values of a metric are better, by its key; ``None`` if neither are, such as those of a length.

    A custom metric has the direction that the run's config gives it in ``keep_best`` or a callback. Lower values of a
    part of the reward are better where its weight is negative.
    """
    for declared in _declared(config or {}):
        if declared.get("metric") == key:
            return "lower" if declared.get("mode") == "min" else "higher"
    if key in {f"reward/{name}" for name in _charged(config or {})}:
        return "lower"
    return next((found for pattern, found in _DIRECTIONS if fnmatchcase(key, pattern)), None)


def _declared(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a config says of metrics: ``{metric: ..., mode: min}``."""
    keep_best = _mapping(config.get("train_evaluation")).get("keep_best")
    yield {"metric": keep_best} if isinstance(keep_best, str) else _mapping(keep_best)
    callbacks = config.get("callbacks")
    for callback in callbacks if isinstance(callbacks, list) else ():
        yield _mapping(_mapping(callback).get("args"))


def _charged(config: Mapping[str, Any]) -> Iterator[str]:
    """Names of the parts of a composite reward with a negative weight. Their logged values are unweighted."""
    parts = _mapping(_mapping(config.get("reward_fn")).get("args")).get("rewards")
    for part in map(_mapping, parts if isinstance(parts, list) else ()):
        weight = part.get("weight")
        if isinstance(weight, int | float) and weight < 0:
            yield str(part.get("name") or part.get("id"))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def student_interval(value: float, *parts: tuple[float, int]) -> Interval | None:
    """Student's t interval of a number whose variance is a sum of independent estimates, given with degrees of freedom.

    With one part, this is the interval of a mean; with two, that of a difference of means (Welch 1947, doi
    10.1093/biomet/34.1-2.28). There is none without degrees of freedom, or if all variances are 0: a few equal values
    do not show their spread.
    """
    variance = sum(each for each, _ in parts)
    if min(df for _, df in parts) < 1 or not variance > 0:
        return None
    df = variance**2 / sum(each**2 / df for each, df in parts)
    low, high = stats.t.interval(CONFIDENCE, df, loc=value, scale=math.sqrt(variance))
    return Interval(float(low), float(high))


def mean_interval(values: Sequence[float] | NDArray[np.float64]) -> Interval | None:
    """Student's t interval of a mean; ``None`` for fewer than two values, or if they are all the same. Ignores NaN."""
    mean, error = mean_and_standard_error(values)
    n = int(np.count_nonzero(~np.isnan(values)))
    return None if error is None else student_interval(mean, (error**2, n - 1))


def mean_intervals(scores: NDArray[np.float64], are_differences: bool = False) -> list[Interval | None]:
    """Confidence intervals of column means over samples; ``None`` for a column with fewer than ``MIN_SAMPLES`` scores.

    They are Student's t intervals, except for shares, whose scores are all 0 or 1: theirs are Wilson's. Differences of
    scores of the same samples are no shares. Scores have one row per sample, NaN where it has none. Shape (N, C).
    """
    intervals: list[Interval | None] = []
    for column in scores.T:
        known = column[~np.isnan(column)]
        if len(known) < MIN_SAMPLES:
            intervals.append(None)
        elif not are_differences and np.isin(known, (0, 1)).all():
            intervals.append(wilson_interval(float(known.sum()), len(known)))
        else:
            mean = float(known.mean())
            intervals.append(mean_interval(known) or Interval(mean, mean))
    return intervals


def mean_and_standard_error(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float | None]:
    """Mean and standard error over runs; the latter is ``None`` for a single run. Ignores NaN."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return math.nan, None
    error = float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else None
    return float(np.mean(known)), error


@dataclass(frozen=True)
class MetricChange:
    """A metric before and after training, and the difference on the same prompts, as far as measured.

    The note says why there is no interval. ``repeats`` are metrics with the same scores, which have no line of their
    own.
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
    """The change of every metric between the first and the last evaluation of a split, of which these are the replies.

    An interval needs scores of at least ``MIN_SAMPLES`` replies whose mean is the metric. If their mean is a different
    number (a corpus BLEU is not the mean of sentence BLEUs), it gets a line of its own. Rewards of replies come first.
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
    """The number of test samples with replies before and after, and the changes of metrics that have an interval."""
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
    """Add directions to changes, and remove those of metrics that repeat another one, by ``repeats``."""
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
    return _estimates(predictions.scores)


def difference_estimates(before: Predictions, after: Predictions) -> dict[str, Estimate]:
    """Mean and interval of the change of each score, over the samples that both evaluations have."""
    before, after = pair(before, after)
    shared = [key for key in after.scores if key in before.scores] if len(before) else []
    return _estimates({key: after.scores[key] - before.scores[key] for key in shared}, are_differences=True)


def _estimates(scores: Mapping[str, NDArray[np.float64]], are_differences: bool = False) -> dict[str, Estimate]:
    if not scores:
        return {}
    intervals = mean_intervals(np.stack(list(scores.values()), axis=1), are_differences)
    means = [math.nan if np.isnan(values).all() else float(np.nanmean(values)) for values in scores.values()]
    return dict(zip(scores, map(Estimate, means, intervals), strict=True))


def _mean_changes(before: Predictions | None, after: Predictions | None) -> dict[str, MetricChange]:
    """Changes computed from the scores per reply."""
    if before is None or after is None:
        first, last = ({} if one is None else mean_estimates(one) for one in (before, after))
        return {key: MetricChange(key, first.get(key), last.get(key), None) for key in {**first, **last}}
    old, new = map(mean_estimates, pair(before, after))
    changes = difference_estimates(before, after)
    return {key: MetricChange(key, old[key], new[key], change) for key, change in changes.items()}


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


def sort_keys(evaluations: Sequence[Predictions]) -> list[str]:
    """Scores to sort samples by, with the reward or return and its parts first."""
    keys = dict.fromkeys(key for predictions in reversed(evaluations) for key in predictions.scores)
    first = ranking_key(keys)
    return sorted(keys, key=lambda key: (key != first, not key.startswith(f"{REWARD_KEY}/")))


def ranking_key(keys: Collection[str]) -> str | None:
    """The score by which samples are selected: the reward, otherwise the return of a conversation, if there is one."""
    return next((key for key in (REWARD_KEY, *RETURN_KEYS) if key in keys), None)


def repeated_keys(evaluations: Sequence[Predictions]) -> dict[str, str]:
    """The scores that equal an earlier one for every sample of all evaluations of a split, and which one.

    The reward comes first, its parts last. Constant scores are repeats only if both are rewards or returns: that two
    metrics are always 1 does not make them one.
    """
    found: dict[str, str] = {}
    keys = sorted(sort_keys(evaluations), key=lambda key: key.startswith(f"{REWARD_KEY}/"))
    columns = {key: _column(key, evaluations) for key in keys}
    for i, key in enumerate(keys):
        for earlier in keys[:i]:
            if earlier not in found and _is_repeat(key, earlier, columns):
                found[key] = earlier
                break
    return found


def _column(key: str, evaluations: Sequence[Predictions]) -> NDArray[np.float64]:
    missing = [np.full(len(each), np.nan) for each in evaluations]
    return np.concatenate([each.scores.get(key, nan) for each, nan in zip(evaluations, missing, strict=True)])


def _is_repeat(key: str, earlier: str, columns: dict[str, NDArray[np.float64]]) -> bool:
    one, other = columns[key], columns[earlier]
    if not np.allclose(one, other, rtol=1e-5, atol=1e-8, equal_nan=True):
        return False
    known = one[~np.isnan(one)]
    return len(known) > 0 and (bool(np.ptp(known) > 0) or (is_of_reward(key) and is_of_reward(earlier)))


def is_of_reward(key: str) -> bool:
    """Whether a score is the reward, one of its parts, or the return of a conversation."""
    return key == REWARD_KEY or key.startswith(f"{REWARD_KEY}/") or key in RETURN_KEYS
