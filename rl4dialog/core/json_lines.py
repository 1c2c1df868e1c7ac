"""Files of JSON lines that survive an interruption at any moment."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from rl4dialog.core.errors import RunFolderError
from rl4dialog.core.files import json_object, read_regular, replaced, sync_path


def append_record(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record as one line, and sync it to disk.

    A truncated last line is removed first. Several programs can append to the same file.
    """
    data = json.dumps(record, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        with open(path, "a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            check_appendable(path)
            _mend_end(file)
            _append(file, data)
        if is_new:
            sync_path(path.parent)
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror or error}") from error


def check_appendable(path: Path, is_record: Callable[[bytes], bool] | None = None) -> None:
    """Check that a file, if there is one, is empty or has a record, so that it is not something else.

    Args:
        path: The file.
        is_record: Whether a line is a record; by default, any JSON object is.

    Raises:
        OSError: If it cannot be read.
        RunFolderError: If it has content, but no record.
    """
    if path.exists() and path.stat().st_size:
        with open(path, "rb") as file:
            if not any(map(is_record or _is_record, file)):
                raise RunFolderError(f"{path} has no record of this kind, so it is left as it is; choose another file")


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records as lines; an existing file is replaced."""
    rows = list(records)
    text, keys = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), {*chain.from_iterable(rows)}
    try:
        check_appendable(path, lambda line: _is_record(line) and json_object(line).keys() <= keys)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"{path} cannot be written: {error.strerror}") from error


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, except a truncated last line.

    Raises:
        OSError: If it cannot be read.
    """
    data = read_regular(path)
    lines = data.split(b"\n")
    last = lines.pop()
    return [*lines, last] if _is_record(last) else lines


def _append(file: BinaryIO, data: bytes) -> None:
    end = file.seek(0, os.SEEK_END)
    try:
        n_written = file.write(data)
        if n_written != len(data):
            raise OSError(None, "no space left on the disk")
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise


def _mend_end(file: BinaryIO) -> None:
    """Remove a truncated last line, or add the missing newline to a complete one, which editors may omit."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    data = file.read()
    begin = data.rfind(b"\n") + 1
    if _is_record(data[begin:]):
        file.write(b"\n")
    else:
        file.truncate(begin)


def _is_record(line: bytes) -> bool:
    """Whether a line is complete: a truncated JSON object is never valid."""
    try:
        return isinstance(json_object(line), dict)
    except ValueError:
        return False
