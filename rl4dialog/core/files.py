"""User-specified files: reads files of any kind and their JSON, replaces files as a whole, limits archives."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import DataError, shown

_SURELY_FITS = 100 * 2**20
_MAX_RATIO = 200
_KINDS = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"))


def read_regular(path: Path) -> bytes:
    """Read a regular file; reading a pipe or a device might never end.

    Raises:
        OSError: If it cannot be read, or is not a regular file.
    """
    check_regular(path)
    return path.read_bytes()


def check_regular(path: Path) -> None:
    """Raise an `OSError` if a path is not a regular file, or does not exist."""
    mode = path.stat().st_mode
    for is_kind, name in _KINDS:
        if is_kind(mode):
            raise OSError(f"it is {name}; use a regular file")


def sync_folder(folder: Path) -> None:
    """Sync a folder, its files and its sub-folders to disk."""
    for path in (*folder.rglob("*"), folder):
        sync_path(path)


def sync_names(folder: Path) -> None:
    """Sync the names in a folder to disk, if the file system supports it, so that a renamed file keeps its name."""
    with suppress(OSError):
        sync_path(folder)


def sync_path(path: Path) -> None:
    """Sync a file's content, or the names in a folder, to disk.

    Raises:
        OSError: If the file system does not support it.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_expansion(unpacked: int, packed: int, place: Path) -> None:
    """Refuse archives made to fill up the memory or the disk: no text or model compresses that much.

    Args:
        unpacked: Number of bytes to unpack, or unpacked so far.
        packed: Size of the archive in bytes.
        place: The archive, for the message.
    """
    if unpacked > _SURELY_FITS and unpacked > _MAX_RATIO * packed:
        raise DataError(
            f"{place} expands to more than {_MAX_RATIO} times its size, which no compressed text does; if that is "
            f"correct, unpack it yourself"
        )


@contextmanager
def replaced(path: str | os.PathLike[str], ending: str = ".tmp") -> Iterator[Path]:
    """Yield a temporary path beside a file, which gets the file's name if the block succeeds, and is removed otherwise.

    The temporary name is the file's with a dot before and the ending after it. A device or pipe is written directly,
    and a link is kept: the file that it names is replaced.

    Raises:
        OSError: If the file cannot be written; an earlier file is then unchanged.
    """
    final = Path(os.path.realpath(path))
    if final.exists() and not final.is_file():
        yield final
        return
    temporary = final.with_name(f".{final.name}{ending}")
    try:
        yield temporary
        sync_path(temporary)
        os.replace(temporary, final)
        sync_names(final.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def json_value(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: If it is malformed or nested too deeply, or an object has a key twice.
    """
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError(f"it has the key {Counter(key for key, _ in pairs).most_common(1)[0][0]!r} twice")
    return found


def json_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: If it is malformed, nested too deeply, or another value.
    """
    found = json_value(text)
    if not isinstance(found, dict):
        raise ValueError(f"it must be a JSON object, not {shown(found)}")
    return found
