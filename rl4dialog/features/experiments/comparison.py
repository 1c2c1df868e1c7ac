"""The page that compares several runs; runs that differ only in their seed form a group."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError
from rl4dialog.core.yaml_loader import flatten
from rl4dialog.functional.statistics import Estimate
from rl4dialog.runs.plots import mean_curve, smooth, smoothing_window
from rl4dialog.runs.reading import Predictions, Run, as_text, read_run
from rl4dialog.runs.report.curves import MIN_ITERATIONS, Curve, Panel, panels, positions, x_axes
from rl4dialog.runs.report.figures import band_chart
from rl4dialog.runs.report.metrics import (
    Direction,
    MetricChange,
    difference_estimates,
    direction,
    mean_estimate,
    repeated_keys,
    reward_differences,
    sample_intervals,
    student_interval,
)
from rl4dialog.runs.report.pages import Picture, run_warnings, subtitle, write_page
from rl4dialog.runs.report.samples import sample_set
from rl4dialog.runs.run_folder import run_state
from rl4dialog.runs.summary import is_headline

_N_LINES = 12  # of the table of metrics, before the others are folded
_MAX_ANSWERS = 4  # groups whose samples are shown side by side
ONE_RUN_EACH = (
    "One run each: the intervals of differences are over samples. Another seed may differ by more, so no difference is "
    "colored; several seeds of each config give intervals over seeds."
)


@dataclass(frozen=True)
class Group:
    """Runs of one config with different seeds."""

    label: str
    runs: list[Run]

    @property
    def seeds(self) -> list[Any]:
        return [run.config.get("seed") for run in self.runs]

    def last_predictions(self, split: str) -> Predictions | None:
        """Predictions of the model that the first run ended with."""
        ends = self.runs[0].ends(split)
        return self.runs[0].predictions(split, ends[-1]) if ends else None

    def scores(self, split: str, key: str, which: int) -> list[float]:
        """A metric before (0) or after (-1) training, by seed, of the runs that have both evaluations."""
        # Repeated runs of one seed are averaged: they do not show how much results vary between seeds.
        by_seed: dict[str, list[float]] = {}
        for run in self.runs:
            metrics, ends = run.metrics.get(split, {}), run.ends(split)
            if len(ends) > 1 and key in (measured := metrics.get(ends[which], {})):
                by_seed.setdefault(str(run.config.get("seed", run.path)), []).append(measured[key])
        return [mean_estimate(values).value for values in by_seed.values()]


@dataclass(frozen=True)
class ComparedMetric:
    """A metric of all groups, with its value for the reference replies, if all runs have the same.

    The key of each change is the label of a group, and its difference is that to the first group after training.
    """

    key: str
    direction: Direction | None
    reference: float | None
    groups: list[MetricChange]


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs by config, in the order in which the configs first occur."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        config = {key: value for key, value in run.config.items() if key != "seed"}
        found.setdefault(json.dumps(config, sort_keys=True, default=str), []).append(run)
    labels = [_label(members) for members in found.values()]
    counts = Counter(labels)
    return [
        Group(label if counts[label] == 1 else f"{label} ({i})", members)
        for i, (label, members) in enumerate(zip(labels, found.values(), strict=True), start=1)
    ]


def config_differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Config keys that differ between groups, except the seed: one value per group, empty if not set."""
    flat = [flatten(group.runs[0].config) for group in groups]
    keys = dict.fromkeys(key for config in flat for key in config if key != "seed")
    texts = {key: [as_text(config[key]) if key in config else "" for config in flat] for key in keys}
    return {key: values for key, values in texts.items() if len(set(values)) > 1}


def group_curves(groups: Sequence[Group], panel: Panel, key: str) -> list[Curve]:
    """Smoothed mean, minimum and maximum of a logged number over the runs of each group; empty without it."""
    runs = [run for group in groups for run in group.runs if run.iterations]
    axes = dict(zip((run.path for run in runs), x_axes(runs), strict=True))
    return [_group_curve(group, panel, key, axes) for group in groups]


def compared_metrics(groups: Sequence[Group], split: str) -> list[ComparedMetric]:
    """Every metric of every group before and after training, over the runs that have both, without repeats.

    Means over several seeds have an interval over seeds, those of a single run one over samples. Differences from the
    first group have an interval over seeds between groups of several seeds (Welch). Those of single runs have one over
    samples, paired, and no effect: it says nothing of other seeds. Different rewards have no difference.
    """
    runs = [run for group in groups for run in group.runs]
    keys = dict.fromkeys(key for run in runs for scores in run.metrics.get(split, {}).values() for key in scores)
    last = [group.last_predictions(split) for group in groups]
    known = [each for each in last if each is not None]
    repeats = repeated_keys(known) if known else {}
    intervals = []
    for group, predictions in zip(groups, last, strict=True):
        metrics = group.runs[0].metrics.get(split, {})
        is_single = len(group.runs) == 1 and metrics
        intervals.append(sample_intervals(predictions, metrics[max(metrics)]) if is_single else {})
    paired = [
        {} if last[0] is None or each is None or each is last[0] else difference_estimates(last[0], each)
        for each in last
    ]
    found = []
    for key in keys:
        if repeats.get(key) in keys:
            continue
        better = direction(key, groups[0].runs[0].config)
        rows: list[MetricChange] = []
        first = groups[0].scores(split, key, -1)
        for i, group in enumerate(groups):
            scores = group.scores(split, key, -1)
            before, after = (mean_estimate(each) if each else None for each in (group.scores(split, key, 0), scores))
            if after is not None and key in intervals[i]:
                after = replace(after, interval=intervals[i][key])
            difference, note = None, ""
            if i and (differing := reward_differences(key, groups[0].runs[0].config, group.runs[0].config)):
                note = f"another reward: {', '.join(differing)}"
            elif i and after is not None and rows[0].after is not None:
                value = after.value - rows[0].after.value
                note = ONE_RUN_EACH if len(first) == len(scores) == 1 else ""
                interval = student_interval(value, first, scores)
                if key in paired[i] and after.interval and rows[0].after.interval and note:
                    interval = paired[i][key].interval
                difference = Estimate(value, interval)
            rows.append(MetricChange(group.label, before, after, difference, note, better))
        values = {f"{run.references[key]:.6g}" for run in runs if key in run.references} if split == "test" else set()
        found.append(ComparedMetric(key, better, float(values.pop()) if len(values) == 1 else None, rows))
    return found


def _group_curve(group: Group, panel: Panel, key: str, axes: Mapping[Path, Mapping[str, Mapping[int, float]]]) -> Curve:
    runs = [run for run in group.runs if any(key in row for row in run.iterations)]
    if not runs:
        return Curve(group.label, {name: [] for known in axes.values() for name in known}, [])
    length = min(len(run.iterations) for run in runs)
    window = smoothing_window(length)
    curves = [smooth([panel.sign * value for value in run.column(key)[:length]], window) for run in runs]
    at = [positions(axes[run.path], run.column("iteration")[:length]) for run in runs]
    x = {name: mean_curve([each[name] for each in at]) for name in at[0]}
    low, high = ([end(values) for values in zip(*curves, strict=True)] for end in (min, max))
    return Curve(group.label, x, mean_curve(curves), low, high)


def _label(runs: Sequence[Run]) -> str:
    """Common prefix of the folder names, without the seed number."""
    if len(runs) == 1:
        return runs[0].path.name
    names = zip(*(run.path.name for run in runs), strict=False)
    common = "".join(letters[0] for letters in itertools.takewhile(lambda letters: len(set(letters)) == 1, names))
    return re.sub(r"([\W_]*seed\d*)?([\W_]+\d*)?$", "", common) or runs[0].path.parent.name


@dataclass(frozen=True)
class Comparison:
    """Runs in groups, and the metrics of a split: those that all have, and those that are left out."""

    groups: list[Group]
    split: str
    shared: list[ComparedMetric]
    left_out: list[ComparedMetric]

    @property
    def notes(self) -> list[str]:
        """What is left out, and why."""
        rewards = [each.key for each in self.left_out if any(row.note for row in each.groups if not row.difference)]
        missing = [each.key for each in self.left_out if each.key not in rewards]
        return [
            *[f"Not compared, because the runs have different rewards: {', '.join(rewards)}."] * bool(rewards),
            *[f"Not compared, because only some runs have them: {', '.join(missing)}."] * bool(missing),
        ]


def compare(run_paths: Sequence[str | Path]) -> Comparison:
    """Compare runs; those whose configs differ only in the seed form a group."""
    folders = [Path(path).expanduser().resolve() for path in run_paths]
    twice = [str(folder) for i, folder in enumerate(folders) if folder in folders[:i]]
    if twice:
        raise DataError(f"{twice[0]} is given twice; pass every run once")
    runs = [read_run(folder) for folder in folders]
    groups = group_runs(runs)
    split = "test" if any(run.epochs("test") for run in runs) else "val"
    shared: list[ComparedMetric] = []
    left_out: list[ComparedMetric] = []
    for metric in compared_metrics(groups, split):
        is_shared = all(row.after and (row.difference or not i) for i, row in enumerate(metric.groups))
        (shared if is_shared else left_out).append(metric)
    return Comparison(groups, split, shared, left_out)


def write_comparison(run_paths: Sequence[str | Path], output: str | Path) -> Path:
    """Write a page that compares runs."""
    found = compare(run_paths)
    groups, split, metrics = found.groups, found.split, found.shared
    runs = [run for group in groups for run in group.runs]
    n_shown = max(2, _N_LINES // (len(groups) + 1))
    headlines = [metric for metric in metrics if is_headline(metric.key)]
    last = {group.label: each for group in groups if (each := group.last_predictions(split)) is not None}
    browser_set = sample_set("samples", dict(list(last.items())[:_MAX_ANSWERS]), takes_turns=False) if last else None
    return write_page(
        Path(__file__).with_name("comparison.html"),
        Path(output).expanduser(),
        groups=groups,
        states={run.path: subtitle(run, run_state(run.path)) for run in runs},
        notes=[
            *found.notes,
            *[ONE_RUN_EACH] * any(row.note == ONE_RUN_EACH for metric in metrics for row in metric.groups),
            *(f"{run.path.name}: {note}" for run in runs for note in run.notes),
        ],
        warnings=[
            each._replace(message=f"{run.path.name}: {each.message}") for run in runs for each in run_warnings(run)
        ],
        differences=config_differences(groups),
        split=split,
        metrics=headlines[:n_shown],
        other_metrics=[
            *headlines[n_shown:],
            *(metric for metric in metrics if metric not in headlines),
            *found.left_out,
        ],
        curves=_pictures(groups),
        browser_set=browser_set,
    )


def _pictures(groups: Sequence[Group]) -> list[Picture]:
    pictures = []
    for panel in panels([run for group in groups for run in group.runs if len(run.iterations) >= MIN_ITERATIONS]):
        for label, key in panel.keys.items():
            title = f"{panel.title}: {label}" if panel.has_legend else panel.title
            chart = band_chart(title, panel.unit or panel.title, group_curves(groups, panel, key))
            pictures.append(Picture(title, "", chart))
    return pictures
