"""Detects incomplete and damaged folders by a manifest of file sizes and hashes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from rl4dialog.core.files import json_object

MANIFEST = "manifest.json"


def write_manifest(folder: Path, **about: Any) -> None:
    """Write the manifest of a folder, as its last file.

    Args:
        folder: The otherwise complete folder.
        about: Additional entries of the manifest; must be JSON-serializable.
    """
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": file_hash(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    (folder / MANIFEST).write_text(json.dumps({**about, "files": files}, indent=1), encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a folder, and verify all files.

    Raises:
        ValueError: If the manifest is missing, or a file is missing or was changed; the message names the file.
    """
    try:
        manifest: dict[str, Any] = json_object((folder / MANIFEST).read_text(encoding="utf-8"))
        expected = {str(name): (entry["bytes"], entry["sha256"]) for name, entry in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it has no readable {MANIFEST}, so it is incomplete") from error
    for name, (n_bytes, sha256) in expected.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{name} is missing")
        if path.stat().st_size != n_bytes:
            raise ValueError(f"{name} has {path.stat().st_size} bytes instead of {n_bytes}")
        if file_hash(path) != sha256:
            raise ValueError(f"{name} was changed")
    return manifest


def file_hash(path: Path) -> str:
    """SHA-256 hash of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
