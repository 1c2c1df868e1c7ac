"""Rows of tables: JSON lines, JSON, CSV, TSV and Parquet files. Every error names the file and the line or row."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError, nearest_hint, shown
from rl4dialog.core.types import is_number
from rl4dialog.data.text_files import read_lines

_MISSING = object()
# Articles are longer than the csv module's default of 128 KiB; this is the largest that every platform takes.
_CSV_FIELD_LIMIT = 2**31 - 1


class Row:
    """One row of a table, whose errors say where it is and what it has.

    A column is a name, or a path of names joined by dots into nested values: ``answers.text`` is the ``text`` of
    ``answers``, or the list of the ``text`` of each of them.

    Args:
        values: By column.
        place: File and line (or dataset and row), for messages.
    """

    __slots__ = ("place", "values")

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values, self.place = values, place

    def __contains__(self, column: str) -> bool:
        return self.get(column, _MISSING) is not _MISSING

    def __getitem__(self, column: str) -> Any:
        """Value of a column.

        Raises:
            DataError: If there is no such column; the message names those that exist.
        """
        value = self.get(column, _MISSING)
        if value is _MISSING:
            raise self.error(f"no column {column!r}{nearest_hint(column, self.values)} (columns: {self._columns()})")
        return value

    def get(self, column: str, default: Any = None) -> Any:
        """Value of a column, or the default where there is no such column."""
        if column in self.values:
            return self.values[column]
        value: Any = self.values
        for name in column.split("."):
            value = _step(value, name)
        return default if value is _MISSING else value

    def text(self, column: str) -> str:
        """A column as text; numbers are written out.

        Raises:
            DataError: If it is neither text nor a number, or text that cannot be encoded.
        """
        return self._text(self[column], column)

    def texts(self, column: str) -> list[str]:
        """A column of one or several texts as a list.

        Raises:
            DataError: If it is empty, or holds something that is neither text nor a number.
        """
        value = self[column]
        if not isinstance(value, list | tuple):
            return [self._text(value, column)]
        if not value:
            raise self.error(f"column {column!r} is an empty list; it must hold at least one text")
        return [self._text(item, column) for item in value]

    def error(self, message: str) -> DataError:
        """An error that names this row."""
        return DataError(f"{self.place}: {message}")

    def _columns(self) -> str:
        return ", ".join(map(str, self.values)) or "none"

    def _text(self, value: Any, column: str) -> str:
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise self.error(f"column {column!r} is no valid Unicode ({error.reason})") from error
            return value
        if is_number(value):
            return str(value)
        raise self.error(f"column {column!r} must hold text, not {shown(value)}")


def _step(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(name, _MISSING)
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and name in item for item in value):
        return [item[name] for item in value]
    return _MISSING


def read_rows(path: Path, delimiter: str | None = None) -> Iterator[Row]:
    """Rows of a file, whose format is told by its name.

    ``.jsonl`` has an object per line, ``.json`` the same or one list of objects, ``.csv`` and ``.tsv`` a line with the
    names of the columns first; each of them also packed as ``.gz``. ``.parquet`` is read too.

    Args:
        path: The file.
        delimiter: Between the columns of a CSV file; by default a tab in ``.tsv`` and a comma otherwise.

    Raises:
        DataError: If the file cannot be read, or is malformed; with the line.
    """
    suffix = table_suffix(path)
    if suffix == ".parquet":
        return _parquet_rows(path)
    if suffix in (".csv", ".tsv"):
        return _csv_rows(path, delimiter if delimiter is not None else {".csv": ",", ".tsv": "\t"}[suffix])
    if suffix in (".jsonl", ".json"):
        return _json_rows(path)
    raise DataError(f"{path} is of no known format; a table is a .jsonl, .json, .csv, .tsv or .parquet file")


def table_suffix(path: Path) -> str:
    """The suffix that tells a table's format, without a ``.gz`` behind it."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def parse_json(text: str, place: str) -> Any:
    """Parse JSON.

    Raises:
        DataError: If it is malformed.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not valid JSON ({error})") from error


def _json_rows(path: Path) -> Iterator[Row]:
    lines = read_lines(path)
    first = next((line for line in lines if line.strip()), "")
    if table_suffix(path) == ".json" and first.lstrip().startswith("["):
        values = parse_json("\n".join(lines), str(path))
        for index, value in enumerate(values):
            yield _object_row(value, f"{path}, row {index}")
        return
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{path}:{number}"
            yield _object_row(parse_json(line, place), place)


def _object_row(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{place}: must be a JSON object with a value per column, not {shown(value)}")
    return Row(value, place)


def _csv_rows(path: Path, delimiter: str) -> Iterator[Row]:
    if not isinstance(delimiter, str) or len(delimiter) != 1:
        raise DataError(f"the delimiter of {path} must be one character, not {delimiter!r}")
    csv.field_size_limit(_CSV_FIELD_LIMIT)
    reader = csv.reader(_with_ends(read_lines(path)), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    try:
        for fields in reader:
            place = f"{path}:{reader.line_num}"
            if header is None:
                header = [name.strip() for name in fields]
                if len(set(header)) < len(header):
                    raise DataError(f"{place}: a column name occurs twice in {', '.join(header)}")
            elif fields:
                if len(fields) != len(header):
                    raise DataError(
                        f"{place}: {len(fields)} fields, but the first line names {len(header)} columns "
                        f"({', '.join(header)})"
                    )
                yield Row(dict(zip(header, fields, strict=True)), place)
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not valid CSV ({error})") from error


def _with_ends(lines: Iterable[str]) -> Iterator[str]:
    return (line + "\n" for line in lines)


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        raise DataError(f"{path} is no file")
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1024):
                for values in batch.to_pylist():
                    yield Row(values, f"{path}, row {number}")
                    number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as a Parquet file: {error}") from error
