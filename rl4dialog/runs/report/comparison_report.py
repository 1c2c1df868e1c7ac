"""The page that compares runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl4dialog.core.errors import DataError
from rl4dialog.runs.report.comparison import (
    Group,
    all_have_tokens,
    config_differences,
    group_curves,
    group_runs,
    metric_means,
)
from rl4dialog.runs.report.curves import MIN_ITERATIONS, panels
from rl4dialog.runs.report.figures import band_chart
from rl4dialog.runs.report.page import Picture, write_page
from rl4dialog.runs.report.runs import read_run
from rl4dialog.runs.summary import is_headline


def write_comparison(run_paths: Sequence[str | Path], output: str | Path) -> Path:
    """Write a page that compares runs; runs whose configs differ only in the seed form a group.

    Args:
        run_paths: Run folders.
        output: The output file.

    Returns:
        The path of the page.

    Raises:
        DataError: If a folder is given twice or is not a run folder, or one of its files cannot be read.
        RunFolderError: If the page cannot be written.
    """
    folders = [Path(path).expanduser().resolve() for path in run_paths]
    twice = [str(folder) for i, folder in enumerate(folders) if folder in folders[:i]]
    if twice:
        raise DataError(f"{twice[0]} is given twice; pass every run once")
    runs = [read_run(folder) for folder in folders]
    groups = group_runs(runs)
    split = "test" if any(run.epochs("test") for run in runs) else "val"
    means = metric_means(groups, split)
    over_tokens = all_have_tokens(runs)
    return write_page(
        "comparison.html",
        Path(output).expanduser(),
        groups=groups,
        notes=[f"{run.path.name}: {note}" for run in runs for note in run.notes],
        differences=config_differences(groups),
        split=split,
        means={key: row for key, row in means.items() if is_headline(key)},
        other_means={key: row for key, row in means.items() if not is_headline(key)},
        over_tokens=over_tokens,
        curves=_pictures(groups, over_tokens),
    )


def _pictures(groups: Sequence[Group], over_tokens: bool) -> list[Picture]:
    pictures = []
    for panel in panels([run for group in groups for run in group.runs if len(run.iterations) >= MIN_ITERATIONS]):
        for label, key in panel.keys.items():
            title = f"{panel.title}: {label}" if panel.has_legend else panel.title
            curves = group_curves(groups, panel, key, over_tokens)
            pictures.append(Picture(title, panel.unit, band_chart(title, curves)))
    return pictures
