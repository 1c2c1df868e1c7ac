"""The runs in a folder, as a table: what each is, how far it is, and what it has reached."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rich.table import Table
from rich.text import Text

from rl4dialog.core.console import Console
from rl4dialog.core.errors import DataError, RunFolderError, nearest_hint
from rl4dialog.core.yaml_loader import flatten
from rl4dialog.runs.reading import Run, read_run
from rl4dialog.runs.run_folder import CONFIG_FILE, PROVENANCE_FILE, RESULT_FILE, run_state
from rl4dialog.runs.summary import format_number, is_headline, table_style

_N_METRICS = 2
_TITLES = ("run", "algorithm", "state", "iterations", "changed")
_WIDE_TITLES = ("algorithm", "changed")  # only in terminals that are wide enough
_ALL_COLUMNS_WIDTH = 100
_PIPED_WIDTH = 160


@dataclass(frozen=True)
class ListedRun:
    """A run in the table, by its path in the folder of the list; the state of one that cannot be read says why."""

    name: str
    run: Run | None
    state: str
    changed: datetime

    @property
    def progress(self) -> str:
        """Iterations so far, of those that the config asks for."""
        if self.run is None or not self.run.iterations:
            return ""
        n_wanted = flatten(self.run.config).get("train_evaluation.n_iters")
        return f"{self.run.iterations[-1]['iteration']}" + (f"/{n_wanted}" if n_wanted else "")

    def score(self, key: str) -> str:
        """First and last evaluation of a metric, on the test split if it has been evaluated twice."""
        metrics = {} if self.run is None else self.run.metrics
        for split in sorted(metrics, key=lambda split: split != "test"):
            by_epoch = metrics[split]
            found = [by_epoch[epoch][key] for epoch in sorted(by_epoch) if key in by_epoch[epoch]]
            if len(found) > 1 or (found and len(metrics) == 1):
                where = "" if split == "test" else f" ({split})"
                return " → ".join(map(format_number, found[:1] + found[1:][-1:])) + where
        return format_number(None)

    @property
    def keys(self) -> list[str]:
        """Keys of its metrics, in order."""
        by_split = {} if self.run is None else self.run.metrics
        return [*dict.fromkeys(key for by_epoch in by_split.values() for found in by_epoch.values() for key in found)]


def list_runs(root: Path) -> list[ListedRun]:
    """Find the runs in a folder and its subfolders, those that changed last first."""
    if not root.is_dir():
        raise RunFolderError(f"{root} is no folder; pass a folder that contains runs")
    found = sorted((_listed(folder, root) for folder in _run_folders(root)), key=lambda run: run.changed, reverse=True)
    if not found:
        raise RunFolderError(f"{root} contains no runs, which are folders with {CONFIG_FILE} and {PROVENANCE_FILE}")
    return found


def print_runs(runs: Sequence[ListedRun], metrics: Sequence[str] = (), console: Console | None = None) -> None:
    """Print a table of runs with these metrics, by default with the first ones of each run."""
    console, known = console or Console(), {key for run in runs for key in run.keys}
    for key in metrics:
        if key not in known:
            raise RunFolderError(f"no run has a metric {key!r}{nearest_hint(key, known)}")
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    is_narrow = console.width < _ALL_COLUMNS_WIDTH
    caption = "A wider terminal also shows algorithm and time of change." if is_narrow else None
    titles = [title for title in _TITLES if not (is_narrow and title in _WIDE_TITLES)]
    table = Table(box=table_style(console), caption=caption, caption_justify="left")
    for title in (*titles, *(metrics or ("metrics",))):
        table.add_column(title, overflow="fold")
    for each in runs:
        algorithm = "" if each.run is None else str(flatten(each.run.config).get("alg.id", ""))
        values = (each.name, algorithm, each.state, each.progress, f"{each.changed:%Y-%m-%d %H:%M}")
        cells = dict(zip(_TITLES, values, strict=True))
        first = [*filter(is_headline, each.keys)][:_N_METRICS]
        lines = "\n".join(f"{key} {each.score(key)}" for key in ([] if metrics else first))
        scores = [each.score(key) for key in metrics] if metrics else [lines]
        table.add_row(*map(Text, [*(cells[title] for title in titles), *scores]))
    console.print(table)


def _run_folders(root: Path) -> Iterator[Path]:
    for folder, subfolders, files in os.walk(root):
        if CONFIG_FILE in files and PROVENANCE_FILE in files:
            subfolders.clear()  # a run's own subfolders, such as its model
            yield Path(folder)
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]


def _listed(folder: Path, root: Path) -> ListedRun:
    name = str(folder.relative_to(root)) if folder != root else folder.name
    changed = datetime.fromtimestamp(max(file.lstat().st_mtime for file in folder.glob("*.json*")))
    try:
        run = read_run(folder)
    except (DataError, RunFolderError) as error:
        return ListedRun(name, None, f"unreadable: {error}", changed)
    state = run_state(folder)
    if state == "stopped" and (folder / RESULT_FILE).exists():
        state = f"damaged: {RESULT_FILE}"
    return ListedRun(name, run, state, changed)
