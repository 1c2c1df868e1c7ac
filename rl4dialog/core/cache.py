"""Caches expensive results by content hash in the user's cache folder, and verifies them on each use."""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rl4dialog.core.errors import RunFolderError
from rl4dialog.core.files import naming_errors, read_manifest, write_manifest

_logger = logging.getLogger(__name__)
_FORMAT = 2  # increase it when the meaning of cached files changes
# Temporary folders of this process, by the folders of the cache that could not be written.
_temporary_folders: dict[Path, Path] = {}


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
    missing or was changed: a damaged cache is rebuilt, never used. If the cache cannot be written, or its disk is full,
    it is called for a temporary folder, which is removed when the process ends.
    """
    canonical, folder = _place(kind, key)
    if found := find_cached(kind, key):
        return found
    if not _is_intact(folder, canonical):  # another process may have just built it
        shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        return _elsewhere(kind, folder, canonical, error, build)
    try:
        build(temporary)
        write_manifest(temporary, key=canonical)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if not _is_full(error):
            raise
        return _elsewhere(kind, folder, canonical, error, build)
    try:
        temporary.rename(folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not _is_intact(folder, canonical):  # otherwise another process was faster
            raise
    return folder


def replace_cached(kind: str, key: Mapping[str, Any], build: Callable[[Path], None]) -> Path:
    """Build a folder and put it into the cache, in the place of an earlier one, which is kept if `build` raises."""
    canonical, folder = _place(kind, key)
    with naming_errors(folder.parent, "; set RL4DIALOG_CACHE to a writable folder"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
            new = Path(temporary) / "new"
            new.mkdir()
            build(new)
            write_manifest(new, key=canonical)
            if folder.exists():
                folder.rename(Path(temporary) / "old")
            new.rename(folder)
    return folder


def _elsewhere(kind: str, folder: Path, canonical: str, error: BaseException, build: Callable[[Path], None]) -> Path:
    root, temporary = folder.parent, None
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f"rl4dialog-{kind}-"))
        atexit.register(_remove, temporary, os.getpid())
        _logger.warning("the cache folder %s cannot be written (%s); using %s for now", root, error, temporary)
        build(temporary)
        write_manifest(temporary, key=canonical)
    except BaseException as second:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        if not (isinstance(second, OSError) or _is_full(second)):
            raise
        places = f"neither the cache folder {root} nor the temporary folder {tempfile.gettempdir()}"
        cure = "set RL4DIALOG_CACHE to a folder with space"
        raise RunFolderError(f"{places} can be written ({second}); {cure}") from second
    _temporary_folders[folder] = temporary
    return temporary


def _remove(folder: Path, process: int) -> None:
    """Remove a temporary folder, unless this is a process that was forked from the one that uses it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _is_full(error: BaseException) -> bool:
    no_space = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return no_space or os.strerror(errno.ENOSPC) in str(error)


def find_cached(kind: str, key: Mapping[str, Any]) -> Path | None:
    """The folder that :func:`cached_folder` would return without building it; a damaged one is named in a warning."""
    canonical, folder = _place(kind, key)
    candidates = filter(None, (folder, _temporary_folders.get(folder)))
    found = next((each for each in candidates if _is_intact(each, canonical)), None)
    if found is None and os.path.exists(folder):  # unlike Path.exists, False in a folder that cannot be read
        _logger.warning("the cached %s in %s is damaged, so it is not used but built again", kind, folder)
    return found


def _place(kind: str, key: Mapping[str, Any]) -> tuple[str, Path]:
    canonical = json.dumps({"format": _FORMAT, **key}, sort_keys=True)
    return canonical, cache_root() / f"{kind}-{hashlib.sha256(canonical.encode()).hexdigest()[:24]}"


def _is_intact(folder: Path, canonical: str) -> bool:
    try:
        return bool(read_manifest(folder)["key"] == canonical)
    except (ValueError, KeyError, OSError):
        return False
