"""The curves of a report: logged keys, titles, units, and the axes over which they are drawn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rl4dialog.core.yaml_loader import packaged_yaml
from rl4dialog.functional.statistics import Interval
from rl4dialog.runs.reading import Run
from rl4dialog.runs.report.metrics import sample_intervals
from rl4dialog.runs.summary import is_headline

PHASES = ("time/collect_s", "time/generate_s", "time/evaluate_s", "time/score_s", "time/update_s")
# With fewer iterations, a table of first and last numbers shows as much.
MIN_ITERATIONS = 3
# Number of evaluations with intervals; each one requires reading a predictions file.
_MAX_INTERVALS = 20
_REWARD_PARTS = "rollout/reward/"
_WEIGHT = "/weight"
ITERATIONS, _TOKENS, _TIMESTEPS, _TIME = "iterations", "agent tokens", "timesteps", "time"
_COUNTED = {_TOKENS: ("rollout/tokens",), _TIMESTEPS: ("rollout/timesteps",), _TIME: PHASES}
_UNITS = (("hours of training", 3600.0), ("minutes of training", 60.0), ("seconds of training", 1.0))


@dataclass(frozen=True)
class Panel:
    """One plot of logged numbers: their keys by label, with the config key of a level to mark.

    The sign is -1 for numbers that are logged with the opposite sign. A legend is there if the labels say more than the
    title.
    """

    title: str
    unit: str
    keys: dict[str, str]
    target: str = ""
    sign: int = 1
    has_legend: bool = False


@dataclass(frozen=True)
class Curve:
    """A line, whose points have positions by horizontal axis, with a band around it or an interval at each point."""

    label: str
    x: Mapping[str, Sequence[float]]
    y: Sequence[float]
    low: Sequence[float] = field(default_factory=list)
    high: Sequence[float] = field(default_factory=list)


_PANELS = tuple(Panel(**panel) for panel in packaged_yaml(Path(__file__).with_suffix(".yaml"))["panels"])


def panels(runs: Sequence[Run]) -> list[Panel]:
    """Panels of the logged numbers that are not the same everywhere."""
    logged = dict.fromkeys(key for run in runs for row in run.iterations for key in row)
    values = {key: {value for run in runs for value in run.column(key) if not math.isnan(value)} for key in logged}
    keys = [key for key, known in values.items() if len(known) > 1]
    rewards, weights = {}, {}
    for key in keys:
        label = key.removeprefix(_REWARD_PARTS)
        if label == key:
            continue
        if label.endswith(_WEIGHT):
            weights[label.removesuffix(_WEIGHT)] = key
        else:  # unless it is all of the reward, so that its curve would repeat that of the task reward
            both = [zip(run.column(key), run.column("rollout/task_reward"), strict=True) for run in runs]
            if not all(math.isclose(*each, rel_tol=1e-5, abs_tol=1e-9) for pairs in both for each in pairs):
                rewards[label] = key
    found = [
        _PANELS[0],
        Panel("Reward parts", "before weighting", rewards, has_legend=True),
        Panel("Reward part weights", "", weights, has_legend=True),
        *_PANELS[1:],
    ]
    drawn = (replace(each, keys={label: key for label, key in each.keys.items() if key in keys}) for each in found)
    return [panel for panel in drawn if panel.keys]


def iteration_curve(run: Run, panel: Panel, label: str, key: str) -> Curve:
    """A logged number over all axes of a run."""
    x = positions(x_axes([run])[0], run.column("iteration"))
    return Curve(label, x, [panel.sign * value for value in run.column(key)])


def x_axes(runs: Sequence[Run]) -> list[dict[str, dict[int, float]]]:
    """Horizontal axes that all runs have, always the iterations: for each run, their positions by name of the axis."""
    counted = [{label: _running_total(run, keys) for label, keys in _COUNTED.items()} for run in runs]
    found: list[dict[str, dict[int, float]]] = [{ITERATIONS: {}} for _ in runs]
    for label in _COUNTED:
        if not all(counts[label] for counts in counted) or (label == _TIMESTEPS and _TOKENS in found[0]):
            continue
        name, unit = label, 1.0
        if label == _TIME:
            longest = max(total for counts in counted for total in counts[_TIME].values())
            name, unit = next(each for each in _UNITS if longest >= 2 * each[1] or each[1] == 1.0)
        for axes, counts in zip(found, counted, strict=True):
            axes[name] = {iteration: total / unit for iteration, total in counts[label].items()}
    return found


def positions(axes: Mapping[str, Mapping[int, float]], iterations: Sequence[float]) -> dict[str, list[float]]:
    """Positions of iterations on each axis; NaN where an axis does not have them."""
    return {
        name: [float(i) if name == ITERATIONS else totals.get(int(i), math.nan) for i in iterations]
        for name, totals in axes.items()
    }


def _running_total(run: Run, keys: Sequence[str]) -> dict[int, float]:
    """Sum of logged numbers up to the end of each iteration, 0 before the first; empty if they were not logged."""
    columns = [run.column(key) for key in keys]
    if not any(value > 0 for column in columns for value in column):
        return {}
    rows = zip(*columns, strict=True)
    totals = itertools.accumulate(sum(value for value in row if not math.isnan(value)) for row in rows)
    return {0: 0.0, **{int(i): total for i, total in zip(run.column("iteration"), totals, strict=True)}}


def remaining_keys(run: Run, drawn: Iterable[str]) -> list[str]:
    """Logged keys that no plot shows."""
    keys = dict.fromkeys(key for row in run.iterations for key in row)
    without = {"iteration", *drawn}
    return [key for key in keys if key not in without and not all(map(math.isnan, run.column(key)))]


def evaluation_curves(run: Run, split: str) -> list[Curve]:
    """The headline metrics of a split over its evaluations, with intervals where scores per reply allow them."""
    metrics = run.metrics.get(split, {})
    epochs = sorted(metrics)
    step = max(1, math.ceil(len(epochs) / _MAX_INTERVALS))
    measured = {*epochs[::step], *epochs[-1:]}
    intervals = {epoch: sample_intervals(run.predictions(split, epoch), metrics[epoch]) for epoch in measured}
    x, curves = positions(x_axes([run])[0], epochs), []
    for key in dict.fromkeys(key for epoch in epochs for key in metrics[epoch] if is_headline(key)):
        values = {epoch: metrics[epoch].get(key, math.nan) for epoch in epochs}
        ends = [intervals.get(epoch, {}).get(key, Interval(value, value)) for epoch, value in values.items()]
        if not any(key in found for found in intervals.values()):
            ends = []
        curves.append(Curve(key, x, [*values.values()], [end.low for end in ends], [end.high for end in ends]))
    return curves
