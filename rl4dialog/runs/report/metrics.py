"""Metrics of runs: which values are better, which repeat another, and how much they changed, with intervals.

How often the intervals cover was simulated (``scripts/interval_coverage.py``); ``docs/metrics.md`` has the table.
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

from rl4dialog.core.config_blocks import TEXT_GENERATION
from rl4dialog.core.types import MIN_SAMPLES
from rl4dialog.core.yaml_loader import flatten, packaged_yaml
from rl4dialog.functional.statistics import CONFIDENCE, Estimate, Interval, wilson_interval
from rl4dialog.runs.reading import Predictions, Run, number, pair

ROUNDING = 1e-6
"""Change up to which numbers are equal, in units of the metric or, above 1, relative to it."""
REWARD_KEY, RETURN_KEYS = "reward", ("conversation/return", "episode/return")
NO_SAMPLE_SCORES = "There are no scores per reply, so there is no interval."
NOT_A_MEAN = "It is not the mean of the scores per reply, so there is no interval."

_AFTER_THE_REWARD = tuple(f"reward_fn.{key}" for key in ("on_error", "normalize", "clip", "timeout_s", "async_calls"))

Direction = Literal["higher", "lower"]
Values = Sequence[float] | NDArray[np.float64]

# Patterns of metrics, and which of their values are better. The first one that matches counts.
_DIRECTIONS: list[tuple[str, Direction]] = [
    (pattern, better)
    for each in packaged_yaml(Path(__file__).with_suffix(".yaml"))["directions"]
    for better, patterns in each.items()
    for pattern in patterns.split()
]


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
    return next((better for pattern, better in _DIRECTIONS if fnmatchcase(key, pattern)), None)


def _declared(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What a config says of metrics: ``{metric: ..., mode: min}``."""
    keep_best = _mapping(config.get("train_evaluation")).get("keep_best")
    yield {"metric": keep_best} if isinstance(keep_best, str) else _mapping(keep_best)
    for callback in _blocks(config.get("callbacks")):
        yield _mapping(callback.get("args"))


def _charged(config: Mapping[str, Any]) -> Iterator[str]:
    """Names of the parts of a composite reward with a negative weight. Their logged values are unweighted."""
    for part in _rewards(config.get("reward_fn")):
        if number(part.get("weight")) < 0:
            yield str(part.get("name") or part.get("id"))


def _rewards(reward: Any) -> Iterator[Mapping[str, Any]]:
    """A reward's block, and those of its parts."""
    yield _mapping(reward)
    for part in _blocks(_mapping(_mapping(reward).get("args")).get("rewards")):
        yield from _rewards(part)


def reward_differences(key: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Config keys by which two runs' rewards under a metric key differ; none for metrics that are no rewards.

    A part of the reward, and a reward that is a metric, have keys of their own, without its weight. What happens to the
    reward after it was measured does not count.
    """
    if not is_of_reward(key := key.removeprefix("sampled/")):
        return []
    ours, theirs = _reward_settings(key, one), _reward_settings(key, other)
    return [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]


def _reward_settings(key: str, config: Mapping[str, Any]) -> dict[str, Any]:
    reward, metrics = config.get("reward_fn"), _blocks(_mapping(config.get("train_evaluation")).get("metrics"))
    for block in [reward, *(each.get("args") for each in metrics if each.get("id") == REWARD_KEY)]:
        for part in _rewards(block):
            name, pay = part.get("name") or part.get("id"), part.get("pay") or _mapping(block).get("pay")
            if key == f"{REWARD_KEY}/{name}" and part.get("id") != "partner":
                own = {each: part[each] for each in ("id", "args") if part.get(each)}
                return flatten({name: {**own, "pay": "turn"} if pay == "turn" else own})
    chosen = ["reward_fn"]
    if any(part.get("id") == "partner" for part in _rewards(reward)):  # which pays what the partner's replies carry
        chosen += ["env.args.partner", "env.args.partner_replies"]
    if any(isinstance(part.get("weight"), Mapping) for part in _rewards(reward)):  # schedules, measured at their end
        chosen += ["train_evaluation.n_iters"]
    if _mapping(config.get("env")).get("id", TEXT_GENERATION) != TEXT_GENERATION:  # an environment that pays
        chosen += ["env.id", "env.args", "task"]
    begin = tuple(f"{each}." for each in chosen)
    of_reward = {name: value for name, value in flatten(config).items() if f"{name}.".startswith(begin)}
    return {name: value for name, value in of_reward.items() if not name.startswith(_AFTER_THE_REWARD)}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _blocks(value: Any) -> list[Mapping[str, Any]]:
    return list(map(_mapping, value)) if isinstance(value, list) else []


def student_interval(value: float, *groups: Values) -> Interval | None:
    """Student's t interval of a number whose variance is the sum of those of the means of independent groups of values.

    With one group, this is the interval of a mean; with two, that of a difference of means (Welch 1947, doi
    10.1093/biomet/34.1-2.28). There is none if a group has a single value, or if no group varies: a few equal values
    do not show their spread. Ignores NaN.
    """
    known = [np.asarray(values, float)[~np.isnan(values)] for values in groups]
    if min(map(len, known)) < 2:
        return None
    # Equal values have no variance, although that of their rounded mean may be above 0.
    spread = [float(np.std(each, ddof=1)) if np.ptp(each) > 0 else 0.0 for each in known]
    parts = [((sd / math.sqrt(len(each))) ** 2, len(each) - 1) for sd, each in zip(spread, known, strict=True)]
    variance = sum(part for part, _ in parts)
    if not variance > 0:
        return None
    df = variance**2 / sum(part**2 / df for part, df in parts)
    low, high = stats.t.interval(CONFIDENCE, df, loc=value, scale=math.sqrt(variance))
    return Interval(float(low), float(high))


def mean_estimate(values: Values) -> Estimate:
    """A mean over runs, with Student's t interval. Ignores NaN; the mean of nothing is NaN."""
    known = [value for value in values if not math.isnan(value)]
    mean = float(np.mean(known)) if known else math.nan
    return Estimate(mean, student_interval(mean, known))


def sample_estimate(scores: NDArray[np.float64], are_differences: bool = False) -> Estimate:
    """The mean of scores over samples, with an interval from ``MIN_SAMPLES`` scores on. Ignores NaN.

    It is Student's t interval, except for a share, whose scores are all 0 or 1: that is Wilson's. Differences of scores
    of the same samples are no shares.
    """
    known = scores[~np.isnan(scores)]
    mean = float(np.nanmean(scores)) if len(known) else math.nan
    if len(known) < MIN_SAMPLES or not np.isfinite(known).all():
        return Estimate(mean)
    if not are_differences and np.isin(known, (0, 1)).all():
        return Estimate(mean, wilson_interval(float(known.sum()), len(known)))
    # Equal scores of so many samples show that there is no spread.
    return Estimate(mean, Interval(mean, mean) if np.ptp(known) == 0 else student_interval(mean, known))


@dataclass(frozen=True)
class MetricChange:
    """A metric before and after training, and the difference on the same prompts, as far as measured.

    The note says why there is no interval, or nothing follows from it. ``repeats`` are metrics with the same scores.
    """

    key: str
    before: Estimate | None
    after: Estimate | None
    difference: Estimate | None
    note: str = ""
    direction: Direction | None = None
    repeats: tuple[str, ...] = ()

    @property
    def is_constant(self) -> bool:
        """Whether the change is no more than rounding."""
        size = 1.0 if self.after is None else max(1.0, abs(self.after.value))
        return self.difference is not None and abs(self.difference.value) <= ROUNDING * size

    @property
    def effect(self) -> str:
        """``better`` or ``worse`` if the change is significant, ``other`` if the metric then has no direction."""
        interval = self.difference.interval if self.difference is not None else None
        if interval is None or 0 in interval or self.is_constant or self.note:
            return ""
        if self.direction is None:
            return "other"
        return "better" if (interval.low > 0) == (self.direction == "higher") else "worse"


def metric_changes(
    run: Run, split: str, before: Predictions | None, after: Predictions | None, repeats: Mapping[str, str] = {}
) -> list[MetricChange]:
    """The change of every metric between the first and the last evaluation of a split, of which these are the replies.

    An interval needs scores of at least ``MIN_SAMPLES`` replies whose mean is the metric. If their mean is a different
    number (a corpus BLEU is not the mean of sentence BLEUs), it gets a line of its own; a metric that repeats another
    one gets none. Rewards of replies come first.
    """
    ends, metrics = run.ends(split), run.metrics.get(split, {})
    old = metrics.get(ends[0], {}) if ends else {}
    new = metrics.get(ends[-1], {}) if len(ends) > 1 else {}
    means = _mean_changes(before, after)
    changes = [MetricChange(key, *means[key]) for key in means if key not in old | new]
    for key in dict.fromkeys([*new, *old]):
        mean = means.get(key)
        if mean is not None and agrees(mean[0], old.get(key)) and agrees(mean[1], new.get(key)):
            changes.append(MetricChange(key, *mean))
            continue
        first, last = (Estimate(scores[key]) if key in scores else None for scores in (old, new))
        difference = Estimate(new[key] - old[key]) if first and last else None
        changes.append(MetricChange(key, first, last, difference, NO_SAMPLE_SCORES if mean is None else NOT_A_MEAN))
        if mean is not None:
            changes.append(MetricChange(f"{key}, mean of the replies", *mean))
    keys = {change.key for change in changes}
    repeated = {kept: tuple(key for key, other in repeats.items() if other == kept) for kept in keys}
    shown = [change for change in changes if repeats.get(change.key) not in keys]
    return [replace(c, direction=direction(c.key, run.config), repeats=repeated[c.key]) for c in shown]


def before_and_after(run: Run, split: str) -> tuple[Predictions | None, Predictions | None]:
    """Predictions of the model before training and of the one that the run ended with, on a split."""
    found = [run.predictions(split, end) for end in run.ends(split)]
    before, after = [*found, None, None][:2]
    return before, after


def changes_on_test(run: Run, before: Predictions | None, after: Predictions | None) -> tuple[int, list[MetricChange]]:
    """The number of test samples with replies before and after, and the changes of metrics."""
    if before is None or after is None:
        return 0, []
    return len(pair(before, after)[0]), metric_changes(run, "test", before, after)


def sample_intervals(predictions: Predictions | None, metrics: Mapping[str, float]) -> dict[str, Interval]:
    """Intervals over samples of the metrics of an evaluation, where a metric is the mean of its scores per reply."""
    means = {} if predictions is None else mean_estimates(predictions)
    return {key: each.interval for key, each in means.items() if each.interval and agrees(each, metrics.get(key))}


def mean_estimates(predictions: Predictions) -> dict[str, Estimate]:
    """Mean and interval of each score per reply of an evaluation."""
    return {key: sample_estimate(scores) for key, scores in predictions.scores.items()}


def difference_estimates(before: Predictions, after: Predictions) -> dict[str, Estimate]:
    """Mean and interval of the change of each score, over the samples that both evaluations have."""
    before, after = pair(before, after)
    shared = [key for key in after.scores if key in before.scores] if len(before) else []
    return {key: sample_estimate(after.scores[key] - before.scores[key], are_differences=True) for key in shared}


def _mean_changes(
    before: Predictions | None, after: Predictions | None
) -> dict[str, tuple[Estimate | None, Estimate | None, Estimate | None]]:
    """Before, after and difference of each score per reply."""
    if before is None or after is None:
        first, last = ({} if each is None else mean_estimates(each) for each in (before, after))
        return {key: (first.get(key), last.get(key), None) for key in {**first, **last}}
    old, new = map(mean_estimates, pair(before, after))
    return {key: (old[key], new[key], change) for key, change in difference_estimates(before, after).items()}


def agrees(estimate: Estimate | None, corpus: float | None) -> bool:
    """Whether a corpus score equals the mean of the scores per reply, so that its interval applies."""
    if estimate is None or corpus is None:
        return estimate is None and corpus is None
    return math.isclose(estimate.value, corpus, rel_tol=1e-3, abs_tol=1e-6)


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

    The reward comes first, metrics without a direction after others, parts of the reward last. Constant scores are
    repeats only if both are rewards or returns: that two metrics are always 1 does not make them one.
    """
    keys = sorted(sort_keys(evaluations), key=lambda key: (key.startswith(f"{REWARD_KEY}/"), direction(key) is None))
    columns = {
        key: np.concatenate([each.scores.get(key, np.full(len(each), np.nan)) for each in evaluations]) for key in keys
    }
    found: dict[str, str] = {}
    for i, key in enumerate(keys):
        known = columns[key][~np.isnan(columns[key])]
        for earlier in keys[:i]:
            is_equal = np.allclose(columns[key], columns[earlier], rtol=1e-5, atol=1e-8, equal_nan=True)
            says_much = len(known) and (np.ptp(known) > 0 or (is_of_reward(key) and is_of_reward(earlier)))
            if earlier not in found and is_equal and says_much:
                found[key] = earlier
                break
    return found


def is_of_reward(key: str) -> bool:
    """Whether a score is the reward, one of its parts, or the return of a conversation."""
    return key == REWARD_KEY or key.startswith(f"{REWARD_KEY}/") or key in RETURN_KEYS
