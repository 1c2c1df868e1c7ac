"""Reads user-specified files, which can be of any kind."""

from __future__ import annotations

import stat
from pathlib import Path

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
