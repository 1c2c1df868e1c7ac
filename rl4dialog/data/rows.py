"""Reads rows of JSON lines, JSON, CSV, TSV and Parquet files. Errors contain the file and the line or row."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError, nearest_hint, shown
from rl4dialog.core.files import json_value
from rl4dialog.core.types import is_number
from rl4dialog.data.text_files import UTF_8, read_lines, stream_lines

_logger = logging.getLogger(__name__)
_MISSING = object()
# Articles exceed the csv module's default limit of 128 KiB; this is the largest limit on all platforms.
_CSV_FIELD_LIMIT = 2**31 - 1
# First columns, or else columns, of the files of other tools.
_ORIGINS: dict[str, re.Pattern[str] | set[str]] = {
    "ParlAI": re.compile(r"text:"),
    "MultiWOZ": re.compile(r"\w+\d\.json$"),
    "EmpatheticDialogues": {"conv_id", "utterance_idx", "speaker_idx"},
    "Label Studio": {"annotations", "data"},
    "Argilla": {"fields", "responses"},
}
_NOT_SPACE = re.compile(r"\S")
_EXCEL = re.compile(r"sep=(.)\s*", re.IGNORECASE)
_DELIMITERS = (",", ";", "\t", "|")


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
        """Return the value of a column."""
        value = self.get(column, _MISSING)
        if value is _MISSING:
            known = f"(columns: {self._columns()}){origin(self.values)}"
            raise self.error(f"no column {column!r}{nearest_hint(column, self.values)} {known}")
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
        """Return a column as text; numbers are converted."""
        return self._text(self[column], column)

    def texts(self, column: str) -> list[str]:
        """Return a column of one or several texts as a list."""
        value = _flat(self[column])
        if not isinstance(value, list | tuple):
            return [self._text(value, column)]
        if not value:
            raise self.error(f"column {column!r} is an empty list; it must contain at least one text")
        return [self._text(item, column) for item in value]

    def encodable(self, text: str, what: str) -> str:
        """Return a text of this row."""
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


def _flat(value: Any) -> Any:
    """Join lists in a list, as of the texts of several annotations."""
    is_nested = isinstance(value, list) and value and all(isinstance(item, list) for item in value)
    return [*chain.from_iterable(value)] if is_nested else value


def _step(value: Any, name: str) -> Any:
    value = _flat(value)
    if isinstance(value, Mapping):
        return value.get(name, _MISSING)
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and name in item for item in value):
        return [item[name] for item in value]
    return _MISSING


def read_rows(path: Path, delimiter: str | None = None, encoding: str = UTF_8) -> Iterator[Row]:
    """Read the rows of a file, in the format given by its suffix.

    ``.jsonl`` and ``.json`` files have one object per line, several indented objects, or one list of objects; ``.csv``
    and ``.tsv`` files a first line with column names. All can be compressed as ``.gz``. ``.parquet`` is also supported.

    Args:
        path: The file.
        delimiter: Column delimiter of a CSV file; by default the comma, semicolon, tab or bar of the first line.
        encoding: Encoding of a CSV file.
    """
    suffix = table_suffix(path)
    if suffix == ".parquet":
        return _parquet_rows(path)
    if suffix in (".csv", ".tsv"):
        return _csv_rows(path, delimiter, encoding)
    if suffix in (".jsonl", ".json"):
        return _json_rows(path)
    raise DataError(f"{path} has an unknown format; tables must be .jsonl, .json, .csv, .tsv or .parquet files")


def origin(columns: Iterable[Any]) -> str:
    """Return the end of a message about a file of another tool, which its columns give away; empty for other files."""
    names = [str(name) for name in columns]
    for tool, sign in _ORIGINS.items():
        if names and (sign <= set(names) if isinstance(sign, set) else sign.match(names[0])):
            return f"; this is a file of {tool}, and 'Files from elsewhere' in docs/datapools.md says how to use it"
    return ""


def table_suffix(path: Path) -> str:
    """Return the suffix that determines a table's format, ignoring ``.gz``."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def parse_json(text: str, place: str) -> Any:
    """Parse JSON."""
    try:
        return json_value(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not valid JSON ({error})") from error


def _json_rows(path: Path) -> Iterator[Row]:
    first = next((line for line in stream_lines(path) if line.strip()), "").strip()
    if first.startswith("[") or (first.startswith("{") and ("\r" in first or not first.endswith("}"))):
        yield from _rows_over_lines(path)
        return
    for number, line in enumerate(stream_lines(path), start=1):
        if line.strip():
            place = f"{path}:{number}"
            yield _object_row(parse_json(line, place), place)


def _rows_over_lines(path: Path) -> Iterator[Row]:
    """Rows of a file whose first line is no whole object: a list, or objects of several lines."""
    text = "\n".join(read_lines(path))
    values, places, number, start, end = list[Any](), list[str](), 1, 0, 0
    while found := _NOT_SPACE.search(text, end):
        number += text.count("\n", start, found.start())
        start = found.start()
        places.append(f"{path}:{number}")
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{places[-1]}: not valid JSON ({error})") from error
        values.append(value)
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
        places = [f"{path}, row {index}" for index in range(len(values))]
    elif len(values) == 1 and isinstance(values[0], dict):
        lists = [key for key, value in values[0].items() if isinstance(value, list) and value]
        advice = origin(values[0]) or (f"; save the list in {lists[0]!r} as a file of its own" if lists else "")
        raise DataError(f"{path} contains one object; a list of objects, or one object per line, is needed{advice}")
    yield from map(_object_row, values, places)


def _object_row(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{place}: must be a JSON object with one value per column, not {shown(value)}")
    return Row(value, place)


def _csv_rows(path: Path, delimiter: str | None, encoding: str) -> Iterator[Row]:
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1):
        raise DataError(f"the delimiter of {path} must be one character, not {delimiter!r}")
    csv.field_size_limit(_CSV_FIELD_LIMIT)
    lines = read_lines(path, encoding)
    ended = [line + "\n" for line in lines]
    # With carriage returns only, as of an old Macintosh, rows end where StringIO ends lines.
    texts = io.StringIO("".join(ended), newline="") if lines and "\r" in lines[0] else iter(ended)
    first = next(texts, "")
    is_chosen = _EXCEL.fullmatch(first)
    if is_chosen:
        delimiter, first = delimiter or is_chosen[1], next(texts, "")
    usual = "\t" if table_suffix(path) == ".tsv" else ","
    delimiter = delimiter or next((each for each in (usual, *_DELIMITERS) if each in first), usual)
    if delimiter != usual:
        _logger.info("%s: columns are separated by %r", path, delimiter)
    reader = csv.reader(chain([first], texts), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    try:
        for fields in reader:
            place = f"{path}:{reader.line_num + bool(is_chosen)}"
            if header is None:
                header = [name.strip() for name in fields]
                if "utterance_idx" in header and (found := origin(header)):
                    raise DataError(f"{place}: each row is a single utterance, with _comma_ for commas{found}")
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
        raise DataError(f"{path}:{reader.line_num + bool(is_chosen)}: not valid CSV ({error})") from error


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
