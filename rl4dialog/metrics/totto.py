"""Preprocessing of tables, texts and references in ToTTo's evaluation (Parikh et al. 2020, arXiv 2004.14373).

Scores are computed over all samples, and separately for tables whose headers occur in the training data ("overlap") and
for the others. Without this information in the samples, there is only the overall score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl4dialog.core.errors import DataError

_N_REFERENCES = 3
_MISSING = "<null>"


def raw_tables(meta_infos: list[dict[str, Any]] | None, who: str) -> list[dict[str, Any]]:
    """Return the samples' tables in ToTTo's format."""
    tables = []
    for row, info in enumerate(meta_infos if meta_infos is not None else [None]):
        table = (info or {}).get("raw_table")
        if not isinstance(table, dict) or not {"table", "highlighted_cells"} <= table.keys():
            raise DataError(
                f"{who} needs samples with a record of ToTTo in meta_data['raw_table'] (with the keys 'table' and "
                f"'highlighted_cells'), which the datapool totto provides; text {row} has "
                f"{sorted(info) if isinstance(info, dict) else info!r}"
            )
        tables.append(table)
    return tables


def subsets(tables: Sequence[dict[str, Any]]) -> dict[str, list[int]]:
    """Rows of ``overall``, ``overlap`` and ``non_overlap``, without empty subsets."""
    found: dict[str, list[int]] = {"overall": list(range(len(tables))), "overlap": [], "non_overlap": []}
    for row, table in enumerate(tables):
        # Some copies of the dataset contain strings, and "none" in the train split.
        flag = str(table.get("overlap_subset")).lower()
        if flag in ("true", "false"):
            found["overlap" if flag == "true" else "non_overlap"].append(row)
    return {name: rows for name, rows in found.items() if rows}


def prepare_text(text: str) -> str:
    """Lowercase a text and join its lines; ``<null>`` if it is blank."""
    return " ".join(text.lower().split()) or _MISSING


def prepare_references(references: Sequence[str]) -> list[str]:
    """Prepare references likewise, with ``<null>`` for each one missing from three."""
    return [prepare_text(reference) for reference in references] + [_MISSING] * (_N_REFERENCES - len(references))


def table_values(table: dict[str, Any]) -> list[str]:
    """Values of all cells, titles and the section text."""
    cells = [cell for row in table["table"] for cell in row]
    return _values(cells, table, ("table_page_title", "table_section_title", "table_section_text"))


def highlighted_values(table: dict[str, Any]) -> list[str]:
    """Values of the highlighted cells and the titles."""
    try:
        cells = [table["table"][row][column] for row, column in table["highlighted_cells"]]
    except (IndexError, TypeError, ValueError) as error:
        raise DataError(
            f"the table {table.get('example_id')!r} highlights cells that do not exist: {table['highlighted_cells']!r}"
        ) from error
    return _values(cells, table, ("table_page_title", "table_section_title"))


def _values(cells: Sequence[Any], table: dict[str, Any], titles: Sequence[str]) -> list[str]:
    try:
        values = [str(cell["value"]) for cell in cells]
    except (KeyError, TypeError) as error:
        raise DataError(f"the table {table.get('example_id')!r} has a cell without 'value'") from error
    values += [str(table.get(title) or "") for title in titles]
    return [value.strip().replace("|", "-").lower() for value in values if value.strip()]
