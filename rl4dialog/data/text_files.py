"""Reading the text files of a dataset, from a folder or from inside a zip, so that errors name file and line."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from rl4dialog.core.errors import DataError


def decode_lines(data: bytes, file: str) -> list[str]:
    """Split UTF-8 data at newlines.

    Only ``\\n`` and ``\\r\\n`` end a line: `str.splitlines` also splits at separators that occur inside utterances.

    Args:
        data: Content of a file.
        file: Its name, for messages.

    Returns:
        The lines without their ends; the newline at the end of the file makes no empty line.

    Raises:
        DataError: If a line is not UTF-8.
    """
    raw_lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if raw_lines[-1] == b"":
        raw_lines.pop()
    lines = []
    for number, raw in enumerate(raw_lines, start=1):
        try:
            lines.append(raw.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(f"{file}:{number}: not valid UTF-8 ({error.reason} at byte {error.start})") from error
    return lines


def read_lines(path: Path) -> list[str]:
    """Lines of a text file; see `decode_lines`."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return decode_lines(data, str(path))


def read_zip_lines(path: Path, member: str) -> list[str]:
    """Lines of the file with a given base name inside a zip; see `decode_lines`."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.rsplit("/", 1)[-1] == member and not name.startswith("__MACOSX"):
                    return decode_lines(archive.read(name), f"{path}/{name}")
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as a zip file: {error}") from error
    raise DataError(f"{path} does not contain {member}")


def expand_path(path: str | os.PathLike[str]) -> Path:
    """A path with ``~`` replaced.

    Raises:
        DataError: If the path does not exist, or is not a path.
    """
    if isinstance(path, Mapping) or not isinstance(path, str | os.PathLike):
        raise DataError(f"path must be a file or folder name, not {path!r}")
    expanded = Path(path).expanduser()
    if not expanded.exists():
        raise DataError(f"{expanded} does not exist")
    return expanded
