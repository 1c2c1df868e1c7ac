"""Reads user-specified files, which can be of any kind, and the JSON in them, which can be anything."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import shown

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


def json_value(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: If it is malformed or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def json_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ValueError: If it is malformed, nested too deeply, or another value.
    """
    found = json_value(text)
    if not isinstance(found, dict):
        raise ValueError(f"it must be a JSON object, not {shown(found)}")
    return found
