"""Reads lines of text files, also in archives, and rows of JSON lines, JSON, CSV, TSV and Parquet files.

Errors contain the file and the line or row.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import functools
import gzip
import io
import itertools
import json
import logging
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict

from rl4dialog.core.arguments import parsed
from rl4dialog.core.errors import DataError, nearest_hint, shown
from rl4dialog.core.files import check_expansion, check_regular, json_value
from rl4dialog.core.types import is_number
from rl4dialog.core.yaml_loader import packaged_yaml

_BYTES_AT_ONCE = 2**24
_ENCRYPTED = 0x1  # bit of a zip member's flags
UTF_8 = "utf-8"

# Files that are renamed to tables, by their first four bytes.
_OTHERS = {
    b"PK\x03\x04": "an Excel file or zip archive",
    b"\xd0\xcf\x11\xe0": "an Excel file",
    b"%PDF": "a PDF file",
    b"\x89PNG": "an image",
    b"PAR1": "a Parquet file",
}

FilePath = str | os.PathLike[str]


def is_count(word: str) -> bool:
    """Whether a word is an integer without a sign, with a length that `int` accepts."""
    return word.isdecimal() and len(word) < 20


def decode_lines(data: bytes, file: str) -> list[str]:
    """Split UTF-8 or UTF-16 data at newlines; one at the end of the file adds no empty line.

    Only ``LF`` and ``CR LF`` end a line: `str.splitlines` also splits at separators that occur inside utterances.
    """
    return list(_lines(io.BufferedReader(io.BytesIO(data)), file, UTF_8))  # type: ignore[arg-type]


def read_lines(path: Path, encoding: str = UTF_8) -> list[str]:
    """Read the lines of a text file, decompressed if its name ends with ``.gz``; see `decode_lines`."""
    return list(stream_lines(path, encoding))


def stream_lines(path: Path, encoding: str = UTF_8) -> Iterator[str]:
    """Yield the lines of :func:`read_lines` without holding the file in memory."""
    try:
        check_regular(path)
        with _Unpacked(path) if path.suffix == ".gz" else open(path, "rb") as file:
            yield from _lines(io.BufferedReader(file, _BYTES_AT_ONCE), str(path), encoding)  # type: ignore[arg-type]
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read as a gzip file: {error}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


class _Unpacked(gzip.GzipFile):
    """A gzip file, which can have several members and must not fill the memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._path, self._packed = path, path.stat().st_size

    def read(self, size: int | None = -1) -> bytes:
        part = super().read(size)
        check_expansion(self.tell(), self._packed, self._path)
        return part


def _lines(data: io.BufferedReader, file: str, encoding: str) -> Iterator[str]:
    """Decode the lines of a file. UTF-16 begins with a byte order mark."""
    if kind := _OTHERS.get(data.peek(4)[:4]):
        raise DataError(f"{file} is {kind} and not a text file; save its table as a CSV file")
    if encoding == UTF_8 and data.peek(2).startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    if encoding != UTF_8:
        try:
            for number, line in enumerate(io.TextIOWrapper(data, encoding, newline="\n")):
                line = line.removeprefix("\ufeff") if number == 0 else line
                yield line.removesuffix("\n").removesuffix("\r")
        except LookupError as error:
            raise DataError(f"{file}: there is no encoding {encoding!r}; try utf-16 or cp1252") from error
        except UnicodeError as error:
            raise DataError(f"{file}: not valid {encoding.upper()} ({error})") from error
        return
    for number, raw in enumerate(data, start=1):
        raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
        try:
            yield raw.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{file}:{number}: not valid UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8, or, "
                f"with datapool csv, set the encoding, such as encoding: cp1252 for Western European text"
            ) from error


def read_zip_lines(path: Path, member: str) -> list[str]:
    """Read the lines of the file with a given base name inside a zip; see `decode_lines`."""
    for name, data in walk_files(path, lambda name: name.rsplit("/", 1)[-1] == member):
        return decode_lines(data, name)
    raise DataError(f"{path} does not contain {member}")


def walk_files(place: Path, wanted: Callable[[str], Any]) -> Iterator[tuple[str, bytes]]:
    """Yield full name and content of the wanted files of a folder, or of a zip or tar archive without unpacking it.

    Files of a folder are sorted, those of an archive in stored order. `wanted` gets relative names, with slashes.
    """
    try:
        if place.is_dir():
            for path in sorted(place.rglob("*")):
                if path.is_file() and wanted(path.relative_to(place).as_posix()):
                    yield str(path), path.read_bytes()
            return
        if place.exists() and not place.is_file():
            raise DataError(f"{place} is neither a folder nor an archive")
        is_tar = ".tar" in place.suffixes or place.suffix == ".tgz"
        for name, data in _members(place, wanted) if is_tar else _zipped(place, wanted):
            yield f"{place}/{name}", data
    except (zipfile.BadZipFile, NotImplementedError) as error:  # the latter for unsupported compression methods
        raise DataError(f"{place} cannot be read as a zip file: {error}") from error
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{place} cannot be read: {error}") from error


def _members(place: Path, wanted: Callable[[str], Any]) -> Iterator[tuple[str, bytes]]:
    size = 0
    with tarfile.open(place) as tar:
        for member in tar:
            size += member.size
            check_expansion(size, place.stat().st_size, place)
            if wanted(member.name) and (file := tar.extractfile(member)) is not None:
                yield member.name, file.read()


def _zipped(place: Path, wanted: Callable[[str], Any]) -> Iterator[tuple[str, bytes]]:
    size = 0
    with zipfile.ZipFile(place) as archive:
        for info in archive.infolist():
            name = info.filename
            if wanted(name) and not name.startswith("__MACOSX") and not name.endswith("/"):
                size += info.file_size
                check_expansion(size, place.stat().st_size, place)
                if info.flag_bits & _ENCRYPTED:
                    raise DataError(f"{place}/{name} is encrypted; unpack it and use the folder")
                with archive.open(info) as unpacking:  # with a limit, because archives can lie about sizes
                    yield name, unpacking.read(info.file_size + 1)


def expand_path(path: FilePath) -> Path:
    if isinstance(path, Mapping) or not isinstance(path, str | os.PathLike):
        raise DataError(f"path must be a file or folder name, not {path!r}")
    expanded = Path(path).expanduser()
    if not expanded.exists():
        where = "" if expanded.is_absolute() else f" in {Path.cwd()}"
        raise DataError(f"{expanded} does not exist{where}")
    return expanded


_logger = logging.getLogger(__name__)
_warn_once = functools.cache(_logger.warning)  # and not whenever a log is read
_MISSING = object()
# Articles exceed the csv module's default limit of 128 KiB; this is the largest limit on all platforms.
_CSV_FIELD_LIMIT = 2**31 - 1
ELSEWHERE = packaged_yaml(Path(__file__).with_name("elsewhere.yaml"))  # files of other programs
_NOT_SPACE = re.compile(r"\S")
_OF_LOGS = {"messages", "transitions"}  # keys of logs, which can be a single indented object
_EXCEL = re.compile(r"sep=(.)\s*", re.IGNORECASE)
_DELIMITERS = (",", ";", "\t", "|")


class TypedRow(BaseModel):
    """Base of the types of rows, which can have other keys, too. Numbers are finite, and texts are no numbers."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


Typed = TypeVar("Typed", bound=TypedRow)


class Row:
    """One row of a table, with errors that contain its place and its columns.

    A column is a name, or a path of names joined by dots into nested values: ``answers.text`` is the ``text`` of
    ``answers``, or the list of the ``text`` of each item. Columns that nobody read are ``unread``, as are keys of
    messages that their reader adds to them; `report_unread` names them.
    """

    __slots__ = ("place", "unread", "values")

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.values, self.place, self.unread = values, place, dict.fromkeys(values)

    def __contains__(self, column: str) -> bool:
        return self._find(column) is not _MISSING

    def __getitem__(self, column: str) -> Any:
        value = self.get(column, _MISSING)
        if value is _MISSING:
            columns = ", ".join(map(str, self.values)) or "none"
            hint = nearest_hint(column, self.values)
            raise self.error(f"no column {column!r}{hint} (columns: {columns}){origin(self.values)}")
        return value

    def get(self, column: str, default: Any = None) -> Any:
        """Return the value of a column, or the default if there is no such column."""
        self.unread.pop(column if column in self.values else column.partition(".")[0], None)
        value = self._find(column)
        return default if value is _MISSING else value

    def _find(self, column: str) -> Any:
        if column in self.values:
            return self.values[column]
        value: Any = self.values
        for name in column.split("."):
            value = _step(value, name)
        return value

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

    def parsed(self, kind: type[Typed]) -> Typed:
        """Return the row as an object of a pydantic class."""
        for name in kind.model_fields:
            self.unread.pop(name, None)
        return parsed(kind, dict(self.values), self.place)

    def error(self, message: str) -> DataError:
        """Create an error that contains the place of this row."""
        return DataError(f"{self.place}: {message}")

    def _text(self, value: Any, column: str) -> str:
        if isinstance(value, str):
            return self.encodable(value, f"column {column!r}")
        if is_number(value):
            return str(value)
        raise self.error(f"column {column!r} must contain text, not {shown(value)}")


def is_blank(value: Any) -> bool:
    """Whether a cell is empty: ``None``, only space, or no number."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def is_empty(value: Any) -> bool:
    """Whether a value says nothing: ``None``, or an empty text, list or object."""
    return value is None or (isinstance(value, str | list | Mapping) and not value)


def report_unread(rows: Iterable[Row], split: str = "train") -> Iterator[Row]:
    """Yield rows, and warn once of what no row's reader read of the split ``train``, unless it is always empty."""
    unread, read = dict[str, str](), set[str]()  # columns and keys with their first place
    try:
        for row in rows:
            yield row
            read.update(row.values.keys() - row.unread.keys())
            for name in row.unread:
                if name not in unread and not is_empty(row.values.get(name, True)):
                    unread[name] = row.place
    finally:
        if split == "train" and (names := [name for name in unread if name not in read]):
            cures = [f"; {name}: {ELSEWHERE['unread'][name]}" for name in names if name in ELSEWHERE["unread"]]
            _warn_once(f"{unread[names[0]]}: these columns are not read: {', '.join(names)}{''.join(cures)}")


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


def read_rows(path: Path, delimiter: str | None = None, encoding: str | None = None) -> Iterator[Row]:
    """Read the rows of a file, in the format given by its suffix.

    ``.jsonl`` and ``.json`` files have one object per line, several indented objects, or one list of objects; ``.csv``
    and ``.tsv`` files a first line with column names. Their delimiter and encoding are found by :func:`csv_text`.
    All can be compressed as ``.gz``. ``.parquet`` is also supported.
    """
    match table_suffix(path):
        case ".parquet":
            return _parquet_rows(path)
        case ".csv" | ".tsv":
            return _csv_rows(path, delimiter, encoding)
        case ".jsonl" | ".json":
            return _json_rows(path)
    raise DataError(f"{path} has an unknown format; tables must be .jsonl, .json, .csv, .tsv or .parquet files")


def origin(columns: Iterable[Any]) -> str:
    """Return the end of a message about a file of another tool, which its columns give away; empty for other files."""
    names = [str(name) for name in columns]
    for tool, sign in ELSEWHERE["programs"].items():
        if names and ({*sign} <= set(names) if isinstance(sign, list) else re.match(sign, names[0])):
            return f"; this is a file of {tool}, and 'Files from elsewhere' in docs/datapools.md says how to use it"
    return ""


def table_suffix(path: Path) -> str:
    """Return the suffix that determines a table's format, ignoring ``.gz``."""
    return (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()


def parse_json(text: str, place: str) -> Any:
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
            yield json_row(line, f"{path}:{number}")


def _rows_over_lines(path: Path) -> Iterator[Row]:
    """Rows of a file whose first line is no whole object: a list, or objects of several lines."""
    text = "\n".join(read_lines(path))
    rows, number, start, end = list[tuple[Any, str]](), 1, 0, 0
    while found := _NOT_SPACE.search(text, end):
        number += text.count("\n", start, found.start())
        start = found.start()
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not valid JSON ({error})") from error
        rows.append((value, f"{path}:{number}"))
    first = rows[0][0] if len(rows) == 1 else None
    if isinstance(first, list):
        rows = [(value, f"{path}, row {index}") for index, value in enumerate(first)]
    elif isinstance(first, dict) and _OF_LOGS.isdisjoint(first):
        lists = [key for key, value in first.items() if isinstance(value, list) and value]
        advice = origin(first) or (f"; save the list in {lists[0]!r} as a file of its own" if lists else "")
        raise DataError(f"{path} contains one object; a list of objects, or one object per line, is needed{advice}")
    yield from itertools.starmap(_object_row, rows)


def json_row(line: str, place: str) -> Row:
    """Parse a JSON object as a row."""
    return _object_row(parse_json(line, place), place)


def _object_row(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{place}: must be a JSON object with one value per column, not {shown(value)}")
    return Row(value, place)


class CsvText(NamedTuple):
    """The lines of a CSV file, and how it is written."""

    lines: list[str]
    delimiter: str
    encoding: str
    is_usual: bool  # whether the delimiter is that of the file's suffix, or named in its first line


def csv_text(path: Path, delimiter: str | None = None, encoding: str | None = None) -> CsvText:
    """Read a CSV file, whose encoding and delimiter are found if they are not given.

    The encoding is UTF-8 or UTF-16, or cp1252 if most lines that are not ASCII are no UTF-8; the delimiter a comma,
    semicolon, tab or bar of the first line that gives the most lines as many fields.
    """
    if delimiter is not None and (not isinstance(delimiter, str) or len(delimiter) != 1):
        raise DataError(f"the delimiter of {path} must be one character, not {delimiter!r}")
    csv.field_size_limit(_CSV_FIELD_LIMIT)
    lines, encoding = _decoded(path, encoding)
    # With carriage returns only, as of an old Macintosh, rows end where StringIO ends lines.
    texts = "".join(line + "\n" for line in lines)
    lines = [*io.StringIO(texts, newline="")] if lines and "\r" in lines[0] else [line + "\n" for line in lines]
    usual = "\t" if table_suffix(path) == ".tsv" else ","
    if lines and (chosen := _EXCEL.fullmatch(lines[0])):
        return CsvText(lines, delimiter or chosen[1], encoding, True)
    found = [each for each in (usual, *_DELIMITERS) if lines and each in lines[0]]
    delimiter = delimiter or max(found, key=lambda each: _regularity(lines, each), default=usual)
    return CsvText(lines, delimiter, encoding, delimiter == usual)


def _decoded(path: Path, encoding: str | None) -> tuple[list[str], str]:
    problem = None
    try:
        lines = read_lines(path, encoding or UTF_8)
    except DataError as error:
        if encoding is not None or not isinstance(error.__cause__, UnicodeDecodeError):
            raise
        problem, lines = error, read_lines(path, "latin-1")
    if encoding is None and lines and "\0" in lines[0]:  # UTF-16 without a byte order mark
        encoding = "utf-16-be" if lines[0].startswith("\0") else "utf-16-le"
        return read_lines(path, encoding), encoding
    if problem is None:
        return lines, encoding or UTF_8
    others = [line.encode("latin-1") for line in lines if not line.isascii()]
    if 2 * sum("\ufffd" not in line.decode(errors="replace") for line in others) <= len(others):
        with contextlib.suppress(DataError):
            return read_lines(path, "cp1252"), "cp1252"
    raise problem


def _regularity(lines: Sequence[str], delimiter: str) -> tuple[float, bool]:
    """Share of the first rows with as many fields as the first line, and whether that has no space after any."""
    with contextlib.suppress(csv.Error):
        sizes = [
            len(fields)
            for fields in itertools.islice(csv.reader(lines, delimiter=delimiter, strict=True), 100)
            if fields
        ]
        return sizes.count(sizes[0]) / len(sizes), f"{delimiter} " not in lines[0]
    return 0.0, False


def _csv_rows(path: Path, delimiter: str | None, encoding: str | None) -> Iterator[Row]:
    """Rows of a CSV file. Those without all fields are left out, unless they are half of all."""
    lines, delimiter, encoding, is_usual = csv_text(path, delimiter, encoding)
    if not is_usual or encoding != UTF_8:
        _logger.info("%s: columns are separated by %r, in %s", path, delimiter, encoding)
    is_chosen = bool(lines) and _EXCEL.fullmatch(lines[0]) is not None
    reader = csv.reader(lines[is_chosen:], delimiter=delimiter, strict=True)
    header: list[str] | None = None
    n_whole, halves = 0, list[str]()
    try:
        for fields in reader:
            place = f"{path}:{reader.line_num + is_chosen}"
            if header is None:
                header = [name.strip() for name in fields]
                if "utterance_idx" in header and (found := origin(header)):
                    raise DataError(f"{place}: each row is a single utterance, with _comma_ for commas{found}")
                if len(set(header)) < len(header):
                    raise DataError(f"{place}: duplicate column name in {', '.join(header)}")
            elif len(fields) == len(header):
                n_whole += 1
                yield Row(dict(zip(header, fields, strict=True)), place)
            elif fields:
                columns = f"{len(header)} columns ({', '.join(header)})"
                halves.append(f"{place}: {len(fields)} fields, but the first line has {columns}")
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num + is_chosen}: not valid CSV ({error})") from error
    if halves and len(halves) >= n_whole:
        raise DataError(halves[0])
    if halves:
        _warn_once(f"{halves[0]}; rows of this kind that are left out: {len(halves)}")


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        raise DataError(f"{path} is not a file")
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            rows = (values for batch in file.iter_batches(batch_size=1024) for values in batch.to_pylist())
            for number, values in enumerate(rows):
                yield Row(values, f"{path}, row {number}")
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as a Parquet file: {error}") from error
