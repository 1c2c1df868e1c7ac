"""Compare several runs; runs that differ only in their seed form a group."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl4dialog.core.mappings import flatten
from rl4dialog.runs.plots import mean_curve, smooth, smoothing_window
from rl4dialog.runs.report.curves import Curve, Panel
from rl4dialog.runs.report.runs import Run, as_text
from rl4dialog.runs.report.statistics import mean_and_standard_error

_TOKENS = "rollout/tokens"


@dataclass(frozen=True)
class Group:
    """Runs of one config with different seeds."""

    label: str
    runs: list[Run]

    @property
    def seeds(self) -> list[Any]:
        """Seeds of the runs."""
        return [run.config.get("seed") for run in self.runs]


@dataclass(frozen=True)
class Mean:
    """A mean over the seeds of a group; the standard error is ``None`` for a single seed."""

    value: float
    standard_error: float | None
    n_seeds: int


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


def group_curves(groups: Sequence[Group], panel: Panel, key: str, over_tokens: bool) -> list[Curve]:
    """Curves of a logged number for all groups: smoothed mean, minimum and maximum over the runs.

    Args:
        groups: In the order of their colors. A group that has not logged the number gets an empty curve.
        panel: The panel of the number.
        key: Key of the number.
        over_tokens: Plot over the agent tokens collected so far instead of the iterations.
    """
    return [_group_curve(group, panel, key, over_tokens) for group in groups]


def metric_means(groups: Sequence[Group], split: str) -> dict[str, list[tuple[Mean | None, Mean | None]]]:
    """Means before and after training, by metric and group, over the runs that have both."""
    runs = [run for group in groups for run in group.runs]
    keys = dict.fromkeys(key for run in runs for scores in run.metrics.get(split, {}).values() for key in scores)
    return {key: [(_mean(group, split, key, 0), _mean(group, split, key, -1)) for group in groups] for key in keys}


def all_have_tokens(runs: Sequence[Run]) -> bool:
    """Whether all runs log their number of agent tokens."""
    return all(run.iterations and not any(map(math.isnan, run.column(_TOKENS))) for run in runs)


def _group_curve(group: Group, panel: Panel, key: str, over_tokens: bool) -> Curve:
    runs = [run for run in group.runs if any(key in row for row in run.iterations)]
    if not runs:
        return Curve(group.label, [], [])
    length = min(len(run.iterations) for run in runs)
    window = smoothing_window(length)
    curves = [smooth([panel.sign * value for value in run.column(key)[:length]], window) for run in runs]
    positions = [
        list(itertools.accumulate(run.column(_TOKENS)[:length])) if over_tokens else run.column("iteration")[:length]
        for run in runs
    ]
    low, high = ([end(values) for values in zip(*curves, strict=True)] for end in (min, max))
    return Curve(group.label, mean_curve(positions), mean_curve(curves), low, high)


def _mean(group: Group, split: str, key: str, which: int) -> Mean | None:
    # Repeated runs of one seed are averaged first: they do not show how much results vary between seeds.
    by_seed: dict[str, list[float]] = {}
    for run in group.runs:
        metrics = run.metrics.get(split, {})
        epochs = sorted(metrics)
        if len(epochs) > 1 and key in metrics[epochs[which]]:
            by_seed.setdefault(str(run.config.get("seed", run.path)), []).append(metrics[epochs[which]][key])
    if not by_seed:
        return None
    values = [mean_and_standard_error(found)[0] for found in by_seed.values()]
    return Mean(*mean_and_standard_error(values), len(values))


def _label(runs: Sequence[Run]) -> str:
    """Common prefix of the folder names, without the seed number."""
    if len(runs) == 1:
        return runs[0].path.name
    names = zip(*(run.path.name for run in runs), strict=False)
    common = "".join(letters[0] for letters in itertools.takewhile(lambda letters: len(set(letters)) == 1, names))
    return re.sub(r"([\W_]*seed\d*)?([\W_]+\d*)?$", "", common) or runs[0].path.parent.name
