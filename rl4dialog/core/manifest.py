"""Telling a whole folder from one that was cut short or damaged: a manifest of its files' sizes and hashes."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"


def write_manifest(folder: Path, **about: Any) -> None:
    """Write down every file of a folder; the last file that is written to it.

    Args:
        folder: Complete otherwise.
        about: Further entries of the manifest; JSON.
    """
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _file_hash(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    (folder / MANIFEST).write_text(json.dumps({**about, "files": files}, indent=1), encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder whose files are what they were when it was written.

    Raises:
        ValueError: If it has no manifest, or a file is missing or differs; it says which.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        expected = {str(name): (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it has no readable {MANIFEST}, so it was not written to its end") from error
    for name, (n_bytes, sha256) in expected.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{name} is missing")
        if path.stat().st_size != n_bytes:
            raise ValueError(f"{name} has {path.stat().st_size} bytes and not {n_bytes}")
        if _file_hash(path) != sha256:
            raise ValueError(f"{name} is not what was written")
    return manifest


def sync_folder(folder: Path) -> None:
    """Have the disk hold a folder, its files and its sub-folders before anything else is done."""
    for path in (*folder.rglob("*"), folder):
        sync_path(path)


def sync_names(folder: Path) -> None:
    """Have the disk hold which names a folder has, where its file system can: a file put in place keeps its place."""
    with suppress(OSError):
        sync_path(folder)


def sync_path(path: Path) -> None:
    """Have the disk hold a file's content, or which names a folder has.

    Raises:
        OSError: If the file system cannot.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
