"""Reads rows of JSON lines, JSON, CSV, TSV and Parquet files. Errors contain the file and the line or row."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError, nearest_hint, shown
from rl4dialog.core.files import json_value
from rl4dialog.core.types import is_number
from rl4dialog.data.text_files import read_lines, stream_lines

_MISSING = object()
# Articles exceed the csv module's default limit of 128 KiB; this is the largest limit on all platforms.
_CSV_FIELD_LIMIT = 2**31 - 1


class Row:
    """One row of a table, with errors that contain its place and its columns.

    A column is a name, or a path of names joined by dots into nested values: ``answers.text`` is the ``text`` of
    ``answers``, or the list of the ``text`` of each item.

    Args:
        values: Values by column.
        place: File and line (or dataset and row), for messages.
    """

    __slots__ = ("place", "values")

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values, self.place = values, place

    def __contains__(self, column: str) -> bool:
        return self.get(column, _MISSING) is not _MISSING

    def __getitem__(self, column: str) -> Any:
        """Return the value of a column.

        Raises:
            DataError: If there is no such column; the message lists the existing ones.
        """
        value = self.get(column, _MISSING)
        if value is _MISSING:
            raise self.error(f"no column {column!r}{nearest_hint(column, self.values)} (columns: {self._columns()})")
        return value

    def get(self, column: str, default: Any = None) -> Any:
        """Return the value of a column, or the default if there is no such column."""
        if column in self.values:
            return self.values[column]
        value: Any = self.values
        for name in column.split("."):
            value = _step(value, name)
        return default if value is _MISSING else value

    def text(self, column: str) -> str:
        """Return a column as text; numbers are converted.

        Raises:
            DataError: If it is neither text nor a number, or is text that cannot be encoded.
        """
        return self._text(self[column], column)

    def texts(self, column: str) -> list[str]:
        """Return a column of one or several texts as a list.

        Raises:
            DataError: If it is empty, or contains a value that is neither text nor a number.
        """
        value = self[column]
        if not isinstance(value, list | tuple):
            return [self._text(value, column)]
        if not value:
            raise self.error(f"column {column!r} is an empty list; it must contain at least one text")
        return [self._text(item, column) for item in value]

    def encodable(self, text: str, what: str) -> str:
        """Return a text of this row.

        Raises:
            DataError: If it cannot be encoded.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise self.error(f"{what} is not valid Unicode ({error.reason})") from error
        return text

    def error(self, message: str) -> DataError:
        """Create an error that contains the place of this row."""
        return DataError(f"{self.place}: {message}")

    def _columns(self) -> str:
        return ", ".join(map(str, self.values)) or "none"

    def _text(self, value: Any, column: str) -> str:
        if isinstance(value, str):
            return self.encodable(value, f"column {column!r}")
        if is_number(value):
            return str(value)
        raise self.error(f"column {column!r} must contain text, not {shown(value)}")


def _step(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(name, _MISSING)
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and name in item for item in value):
        return [item[name] for item in value]
    return _MISSING


def read_rows(path: Path, delimiter: str | None = None) -> Iterator[Row]:
    """Read the rows of a file, in the format given by its suffix.

    ``.jsonl`` files have one object per line, ``.json`` files the same or one list of objects, ``.csv`` and ``.tsv``
    files a first line with column names; all can be compressed as ``.gz``. ``.parquet`` is also supported.

    Args:
        path: The file.
        delimiter: Column delimiter of a CSV file; by default a tab for ``.tsv`` and otherwise a comma.

    Raises:
        DataError: If the file cannot be read or is malformed; the message contains the line.
    """
    suffix = table_suffix(path)
    if suffix == ".parquet":
        return _parquet_rows(path)
    if suffix in (".csv", ".tsv"):
        return _csv_rows(path, delimiter if delimiter is not None else {".csv": ",", ".tsv": "\t"}[suffix])
    if suffix in (".jsonl", ".json"):
        return _json_rows(path)
    raise DataError(f"{path} has an unknown format; tables must be .jsonl, .json, .csv, .tsv or .parquet files")


def table_suffix(path: Path) -> str:
    """Return the suffix that determines a table's format, ignoring ``.gz``."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def parse_json(text: str, place: str) -> Any:
    """Parse JSON.

    Raises:
        DataError: If it is malformed.
    """
    try:
        return json_value(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not valid JSON ({error})") from error


def _json_rows(path: Path) -> Iterator[Row]:
    if table_suffix(path) == ".json":
        whole = read_lines(path)
        first = next((line for line in whole if line.strip()), "")
        if first.lstrip().startswith("["):
            for index, value in enumerate(parse_json("\n".join(whole), str(path))):
                yield _object_row(value, f"{path}, row {index}")
            return
        lines: Iterable[str] = whole
    else:
        lines = stream_lines(path)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            place = f"{path}:{number}"
            yield _object_row(parse_json(line, place), place)


def _object_row(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{place}: must be a JSON object with one value per column, not {shown(value)}")
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
                    raise DataError(f"{place}: duplicate column name in {', '.join(header)}")
            elif fields:
                if len(fields) != len(header):
                    raise DataError(
                        f"{place}: {len(fields)} fields, but the first line has {len(header)} columns "
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
        raise DataError(f"{path} is not a file")
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1024):
                for values in batch.to_pylist():
                    yield Row(values, f"{path}, row {number}")
                    number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as a Parquet file: {error}") from error
