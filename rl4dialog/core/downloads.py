"""Downloads of public files, verified by their hash."""

from __future__ import annotations

import shutil
import urllib.request
from http.client import HTTPException
from pathlib import Path

from rl4dialog.core.errors import DataError
from rl4dialog.core.manifest import file_hash

_TIMEOUT_S = 60.0


def download(url: str, sha256: str, target: Path) -> None:
    """Download a file.

    Args:
        url: Address of the file.
        sha256: SHA-256 hash of the file, in hexadecimal.
        target: Path of the new file.

    Raises:
        DataError: If it cannot be downloaded, or has another hash; there is then no file.
    """
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response, target.open("wb") as file:
            shutil.copyfileobj(response, file)
    except (OSError, HTTPException) as error:  # urllib's errors are OSErrors
        target.unlink(missing_ok=True)
        raise DataError(f"{url} cannot be downloaded: {error}") from error
    if (found := file_hash(target)) != sha256:
        target.unlink()
        raise DataError(f"{url} is not the expected file: its SHA-256 is {found} instead of {sha256}; it was not kept")
