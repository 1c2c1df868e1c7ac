"""The page that compares runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rl4dialog.core.errors import DataError
from rl4dialog.runs.report.comparison import (
    Group,
    compared_metrics,
    config_differences,
    group_curves,
    group_runs,
    last_predictions,
)
from rl4dialog.runs.report.curves import MIN_ITERATIONS, panels
from rl4dialog.runs.report.figures import band_chart
from rl4dialog.runs.report.overview import run_warnings, subtitle
from rl4dialog.runs.report.page import Picture, write_page
from rl4dialog.runs.report.run_report import sample_set
from rl4dialog.runs.report.runs import read_run
from rl4dialog.runs.results import run_state
from rl4dialog.runs.summary import is_headline

_N_LINES = 12  # of the table of metrics, before the others are folded
_MAX_ANSWERS = 4  # groups whose samples are shown side by side


def write_comparison(run_paths: Sequence[str | Path], output: str | Path) -> Path:
    """Write a page that compares runs; runs whose configs differ only in the seed form a group.

    Args:
        run_paths: Run folders.
        output: The output file.

    Returns:
        The path of the page.
    """
    folders = [Path(path).expanduser().resolve() for path in run_paths]
    twice = [str(folder) for i, folder in enumerate(folders) if folder in folders[:i]]
    if twice:
        raise DataError(f"{twice[0]} is given twice; pass every run once")
    runs = [read_run(folder) for folder in folders]
    groups = group_runs(runs)
    split = "test" if any(run.epochs("test") for run in runs) else "val"
    metrics = compared_metrics(groups, split)
    n_shown = max(2, _N_LINES // (len(groups) + 1))
    headlines = [metric for metric in metrics if is_headline(metric.key)]
    last = {group.label: each for group in groups if (each := last_predictions(group, split)) is not None}
    browser_set = sample_set("samples", dict(list(last.items())[:_MAX_ANSWERS]), takes_turns=False) if last else None
    return write_page(
        "comparison.html",
        Path(output).expanduser(),
        groups=groups,
        states={run.path: subtitle(run, run_state(run.path)) for run in runs},
        notes=[f"{run.path.name}: {note}" for run in runs for note in run.notes],
        warnings=[
            replace(each, message=f"{run.path.name}: {each.message}") for run in runs for each in run_warnings(run)
        ],
        differences=config_differences(groups),
        split=split,
        metrics=headlines[:n_shown],
        other_metrics=[*headlines[n_shown:], *(metric for metric in metrics if metric not in headlines)],
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
