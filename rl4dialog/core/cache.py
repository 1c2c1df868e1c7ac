"""Caches expensive results by content hash in the user's cache folder, and verifies them on each use."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rl4dialog.core.files import naming_errors, read_manifest, write_manifest

_logger = logging.getLogger(__name__)
_FORMAT = 2  # increase it when the meaning of cached files changes


def cache_root() -> Path:
    """``RL4DIALOG_CACHE``, or ``rl4dialog`` in the user's cache folder."""
    given = os.environ.get("RL4DIALOG_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rl4dialog"


def content_hash(texts: Iterable[str]) -> str:
    """Hash a sequence of texts, including their boundaries."""
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.hexdigest()


def cached_folder(kind: str, key: Mapping[str, Any], build: Callable[[Path], None]) -> Path:
    """A folder of files that depend only on a JSON-serializable key, from the cache or newly built.

    `build` writes the files into an empty folder. It is called if the folder does not exist, or if one of its files is
    missing or was changed: a damaged cache is rebuilt, never used.
    """
    return find_cached(kind, key) or replace_cached(kind, key, build)


def replace_cached(kind: str, key: Mapping[str, Any], build: Callable[[Path], None]) -> Path:
    """Build a folder and put it into the cache, in the place of an earlier one, which is kept if `build` raises."""
    canonical, folder = _place(kind, key)
    with naming_errors(folder.parent, "; set RL4DIALOG_CACHE to a writable folder with more space"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            new = Path(temporary) / "new"
            new.mkdir()
            build(new)
            write_manifest(new, key=canonical)
            with suppress(FileNotFoundError):
                folder.rename(Path(temporary) / "old")
            try:
                new.rename(folder)
            except OSError:  # another process put the same there between both lines
                if not _is_intact(folder, canonical):
                    raise
    return folder


def find_cached(kind: str, key: Mapping[str, Any]) -> Path | None:
    """The folder that :func:`cached_folder` would return without building it; a damaged one is named in a warning."""
    canonical, folder = _place(kind, key)
    if _is_intact(folder, canonical):
        return folder
    if os.path.exists(folder):  # unlike Path.exists, False in a folder that cannot be read
        _logger.warning("the cached %s in %s is damaged, so it is not used but built again", kind, folder)
    return None


def _place(kind: str, key: Mapping[str, Any]) -> tuple[str, Path]:
    canonical = json.dumps({"format": _FORMAT, **key}, sort_keys=True)
    return canonical, cache_root() / f"{kind}-{hashlib.sha256(canonical.encode()).hexdigest()[:24]}"


def _is_intact(folder: Path, canonical: str) -> bool:
    try:
        return bool(read_manifest(folder)["key"] == canonical)
    except (ValueError, KeyError, OSError):
        return False
