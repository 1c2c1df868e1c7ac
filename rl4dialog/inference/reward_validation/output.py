"""Tables, files and a picture of a validation."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl4dialog.functional.statistics import Interval
from rl4dialog.inference.offline_evaluation import make_folder
from rl4dialog.inference.reward_validation.validation import Agreement, Correlation, Validation, rating_values
from rl4dialog.runs.plots import plot_correlations
from rl4dialog.runs.run_folder import write_json
from rl4dialog.runs.summary import format_number, table_style

# File systems allow 255 bytes; a character has up to 4.
_MAX_NAME_LENGTH = 50


def write_validation(validation: Validation, folder: Path, about: dict[str, Any]) -> None:
    """Write ``correlations.csv``, ``correlations.json``, ``scores.csv`` and one picture per rating."""
    make_folder(folder)
    rows = [_record(agreement) for agreement in validation.agreements]
    _write_table(folder / "correlations.csv", list(rows[0]) if rows else ["score"], (row.values() for row in rows))
    left_out = {column.name: column.problem for column in validation.scores if column.problem}
    counts = {"n": len(validation.rated), "n_systems": len(validation.systems), "not_computed": left_out}
    records = [
        {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}
        for row in rows
    ]
    write_json(folder / "correlations.json", {**about, **counts, "correlations": records})
    columns: dict[str, Sequence[Any]] = {
        "id": [each.dialogue.id for each in validation.rated],
        "conversation": [each.conversation for each in validation.rated],
        "system": [each.system or "" for each in validation.rated],
        **{f"rating/{name}": rating_values(validation.rated, name) for name in validation.ratings},
        **{column.name: column.values for column in validation.scores if column.problem is None},
    }
    _write_table(folder / "scores.csv", list(columns), zip(*columns.values(), strict=True))
    names: set[str] = set()
    for rating in validation.ratings:
        found = [(each.score, each.correlation) for each in _ordered(validation, rating)]
        bars = [(score, each.spearman, _bounds(each.spearman_interval)) for score, each in found if not each.problem]
        if bars:
            name = "".join(c if c.isalnum() else "_" for c in rating)[:_MAX_NAME_LENGTH]
            while name in names:
                name += "_"
            names.add(name)
            plot_correlations(rating, bars, folder / f"correlations_{name}.png")


def _write_table(path: Path, names: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)


def print_validation(validation: Validation) -> None:
    """Print a table per rating, strongest correlation first, and what could not be computed."""
    # In a file, the table need not fit a terminal.
    console = Console(width=None if sys.stdout.isatty() else 120)
    n_systems = len(validation.systems)
    for rating in validation.ratings:
        ordered = _ordered(validation, rating)
        with_systems = any(each.of_systems is not None for each in ordered)
        n_gaps = sum(map(math.isnan, rating_values(validation.rated, rating)))
        gaps = f", {n_gaps} without this rating" if n_gaps else ""
        title = f"Agreement with the rating {rating!r}: {len(validation.rated)} items{gaps}"
        table = Table(title=Text(title), title_justify="left", box=table_style(console), pad_edge=False)
        table.add_column("score", overflow="fold")
        for name in ("Spearman", "95 %", "Kendall", "95 %", "n"):
            table.add_column(name, justify="right", no_wrap=True)
        if with_systems:
            table.add_column(f"Spearman of {n_systems} systems", justify="right")
        for each in ordered:
            if each.correlation.problem is None:
                table.add_row(*map(Text, _cells(each, with_systems)))
        console.print(table)
        for each in ordered:
            if each.correlation.problem:
                console.print(Text(f"{each.score}: no correlation, because {each.correlation.problem}"))
        if with_systems:
            console.print(Text(f"{n_systems} systems are few: their correlation is uncertain."))
    for column in validation.scores:
        if column.problem:
            console.print(Text(f"{column.name} cannot be computed: {column.problem}"))


def _ordered(validation: Validation, rating: str) -> list[Agreement]:
    """Agreements with a rating, the strongest first."""
    of_rating = (each for each in validation.agreements if each.rating == rating)
    return sorted(of_rating, key=lambda each: -abs(np.nan_to_num(each.correlation.spearman)))


def _cells(agreement: Agreement, with_systems: bool) -> list[str]:
    found = agreement.correlation
    cells = [
        agreement.score,
        format_number(found.spearman, "+"),
        _shown(found.spearman_interval),
        format_number(found.kendall, "+"),
        _shown(found.kendall_interval),
        str(found.n),
    ]
    if with_systems:
        cells.append("-" if agreement.of_systems is None else format_number(agreement.of_systems.spearman, "+"))
    return cells


def _shown(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.low:+.2f} to {interval.high:+.2f}"


def _record(agreement: Agreement) -> dict[str, Any]:
    found = agreement.correlation
    row: dict[str, Any] = {"score": agreement.score, "rating": agreement.rating, "n": found.n}
    for name in ("spearman", "kendall"):
        low, high = _bounds(getattr(found, f"{name}_interval"))
        row |= {name: getattr(found, name), f"{name}_low": low, f"{name}_high": high}
    systems = agreement.of_systems or Correlation(0)
    row |= {f"systems_{name}": asdict(systems)[name] for name in ("spearman", "kendall")}
    return {**row, "problem": found.problem or ""}


def _bounds(interval: Interval | None) -> tuple[float, float]:
    return (math.nan, math.nan) if interval is None else (interval.low, interval.high)
