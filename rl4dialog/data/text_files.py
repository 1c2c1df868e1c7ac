"""Reads text files of a dataset, from a folder or an archive, with errors that contain file and line."""

from __future__ import annotations

import codecs
import gzip
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from rl4dialog.core.errors import DataError
from rl4dialog.core.files import check_expansion, check_regular

_BYTES_AT_ONCE = 2**24
_ENCRYPTED = 0x1  # bit of a zip member's flags
UTF_8 = "utf-8"

FilePath = str | os.PathLike[str]


def is_count(word: str) -> bool:
    """Whether a word is an integer without a sign, with a length that `int` accepts."""
    return word.isdecimal() and len(word) < 20


def decode_lines(data: bytes, file: str) -> list[str]:
    r"""Split UTF-8 or UTF-16 data at newlines.

    Only ``\n`` and ``\r\n`` end a line: `str.splitlines` also splits at separators that occur inside utterances.

    Args:
        data: Content of a file.
        file: Name of the file, for messages.

    Returns:
        The lines without their ends; a newline at the end of the file does not add an empty line.
    """
    return list(_decoded([data], file, UTF_8))


def read_lines(path: Path, encoding: str = UTF_8) -> list[str]:
    """Read the lines of a text file, decompressed if its name ends with ``.gz``; see `decode_lines`."""
    return list(stream_lines(path, encoding))


def stream_lines(path: Path, encoding: str = UTF_8) -> Iterator[str]:
    """Yield the lines of :func:`read_lines` without holding the file in memory."""
    try:
        check_regular(path)
        with open(path, "rb") as file:
            if path.suffix == ".gz":
                yield from _decoded(_unpacked(file, path), str(path), encoding)
            else:
                yield from _decoded(iter(lambda: file.read(_BYTES_AT_ONCE), b""), str(path), encoding)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _decoded(parts: Iterable[bytes], file: str, encoding: str) -> Iterator[str]:
    """Decode the lines of a file that is read in parts."""
    number, rest = 0, b""
    for part in _in_utf_8(parts, file, encoding):
        *whole, rest = (rest + part).split(b"\n")
        for raw in whole:
            number += 1
            yield _line(raw, number, file)
    if rest:
        yield _line(rest, number + 1, file)


def _line(raw: bytes, number: int, file: str) -> str:
    raw = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
    try:
        return raw.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file}:{number}: not valid UTF-8 ({error.reason} at byte {error.start}); save the file as UTF-8, or, "
            f"with datapool csv, set the encoding, such as encoding: cp1252 for Western European text"
        ) from error


def _in_utf_8(parts: Iterable[bytes], file: str, encoding: str) -> Iterator[bytes]:
    """Convert the parts of a file to UTF-8. UTF-16 begins with a byte order mark."""
    parts = iter(parts)
    first = next(parts, b"")
    if encoding == UTF_8 and first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    try:
        " ".encode(encoding)  # as there are also codecs that are no encodings
        decoder = codecs.getincrementaldecoder(encoding)()
        for part in chain([first], parts, [b""]):
            yield part if encoding == UTF_8 else decoder.decode(part, final=not part).encode()
    except LookupError as error:
        raise DataError(f"{file}: there is no encoding {encoding!r}; try utf-16 or cp1252") from error
    except UnicodeError as error:
        raise DataError(f"{file}: not valid {encoding.upper()} ({error})") from error


def _unpacked(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Decompress a gzip file, which can have several members, in parts."""
    size, packed = 0, os.fstat(file.fileno()).st_size
    try:
        with gzip.GzipFile(fileobj=file) as unpacking:
            while part := unpacking.read(_BYTES_AT_ONCE):
                size += len(part)
                check_expansion(size, packed, path)
                yield part
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read as a gzip file: {error}") from error


def read_zip_lines(path: Path, member: str) -> list[str]:
    """Read the lines of the file with a given base name inside a zip; see `decode_lines`."""
    for name, data in walk_files(path, lambda name: name.rsplit("/", 1)[-1] == member):
        return decode_lines(data, name)
    raise DataError(f"{path} does not contain {member}")


def walk_files(place: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Read files of a folder, or of a zip or tar archive without unpacking it.

    Args:
        place: Folder or archive.
        wanted: Whether to read a file, given its name relative to ``place`` with forward slashes.

    Yields:
        Full name and content of each wanted file: sorted by name in a folder, in stored order in an archive.
    """
    try:
        if place.is_dir():
            for path in sorted(place.rglob("*")):
                if path.is_file() and wanted(path.relative_to(place).as_posix()):
                    yield str(path), path.read_bytes()
        elif place.exists() and not place.is_file():
            raise DataError(f"{place} is neither a folder nor an archive")
        elif ".tar" in place.suffixes or place.suffix == ".tgz":
            size = 0
            with tarfile.open(place) as tar:
                for member in tar:
                    size += member.size
                    check_expansion(size, place.stat().st_size, place)
                    file = tar.extractfile(member) if wanted(member.name) else None
                    if file is not None:
                        yield f"{place}/{member.name}", file.read()
        else:
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
                            yield f"{place}/{name}", unpacking.read(info.file_size + 1)
    except (zipfile.BadZipFile, NotImplementedError) as error:  # the latter for unsupported compression methods
        raise DataError(f"{place} cannot be read as a zip file: {error}") from error
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{place} cannot be read: {error}") from error


def expand_path(path: FilePath) -> Path:
    """Expand ``~`` in a path."""
    if isinstance(path, Mapping) or not isinstance(path, str | os.PathLike):
        raise DataError(f"path must be a file or folder name, not {path!r}")
    expanded = Path(path).expanduser()
    if not expanded.exists():
        where = "" if expanded.is_absolute() else f" in {Path.cwd()}"
        raise DataError(f"{expanded} does not exist{where}")
    return expanded
