"""Metrics of runs as tables for papers and other programs: CSV with all numbers, and LaTeX with booktabs."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl4dialog.features.experiments.comparison import compare
from rl4dialog.functional.statistics import Estimate
from rl4dialog.runs.reading import read_run
from rl4dialog.runs.report.metrics import MetricChange
from rl4dialog.runs.report.pages import measured

_NUMBERS = ("before", "after", "difference")
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
Rows = dict[str, list[MetricChange]]  # by metric: one per run, or per group of runs


def metric_rows(runs: Sequence[str | Path]) -> tuple[str, Rows]:
    """The split, and the metrics of one run, before and after, or of several, compared."""
    if len(runs) > 1:
        found = compare(runs)
        return found.split, {metric.key: metric.groups for metric in found.shared}
    one = measured(read_run(runs[0]))
    return one.split, {change.key: [change] for change in one.changes}


def write_csv(path: Path, split: str, rows: Rows) -> Path:
    """Write a line for each metric of each run, with 95 % intervals; empty where a number is not known."""
    ends = [f"{name}{end}" for name in _NUMBERS for end in ("", "_low", "_high")]
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["split", "metric", "run", *ends])
        for metric, changes in rows.items():
            for change in changes:
                numbers = [each for name in _NUMBERS for each in _numbers(getattr(change, name))]
                lines.writerow([split, metric, change.key if len(changes) > 1 else "", *numbers])
    return path


def _numbers(found: Estimate | None) -> list[Any]:
    if found is None:
        return ["", "", ""]
    interval = found.interval
    return [found.value, *(["", ""] if interval is None else [interval.low, interval.high])]


def write_latex(path: Path, split: str, rows: Rows) -> Path:
    """Write a table: before, after and change of one run, or a column for each run, after training."""
    compared = max((changes for changes in rows.values()), key=len, default=[])
    names = [change.key for change in compared] if len(compared) > 1 else ["before", "after", "change"]
    lines = [
        f"% {split} split, 95 % intervals; needs \\usepackage{{booktabs}}",
        rf"\begin{{tabular}}{{l{'r' * len(names)}}}",
        r"\toprule",
        " & ".join(["metric", *map(_escaped, names)]) + r" \\",
        r"\midrule",
    ]
    for metric, changes in rows.items():
        cells = [each.after for each in changes]
        if len(compared) <= 1:
            cells = [getattr(changes[0], name) for name in _NUMBERS]
        lines.append(" & ".join([_escaped(metric), *map(_cell, cells)]) + r" \\")
    path.write_text("\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""]), encoding="utf-8")
    return path


def _cell(found: Estimate | None) -> str:
    if found is None:
        return "--"
    interval = found.interval
    span = "" if interval is None else rf" {{\small [${interval.low:.3f}$, ${interval.high:.3f}$]}}"
    return f"${found.value:.3f}${span}"


def _escaped(text: str) -> str:
    return re.sub(r"[\\~^#$%&_{}]", lambda found: _LATEX.get(found[0], f"\\{found[0]}"), text)
