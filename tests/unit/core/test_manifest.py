"""A folder that was cut short or damaged is told from a whole one."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl4dialog.core.files import sync_folder
from rl4dialog.core.manifest import read_manifest, write_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a").write_bytes(b"aaa")
    (tmp_path / "inner" / "b").write_bytes(b"")
    write_manifest(tmp_path, key="k")
    sync_folder(tmp_path)
    return tmp_path


def test_whole_folder_gives_what_was_written_about_it(folder: Path) -> None:
    assert read_manifest(folder)["key"] == "k"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a", None, "a is missing"),
        ("a", b"aa", "a has 2 bytes instead of 3"),
        ("a", b"aab", "a was changed"),
        ("inner/b", b"b", "inner/b has 1 bytes instead of 0"),
        ("manifest.json", None, "no readable manifest.json"),
        ("manifest.json", b'{"files": {"a"', "no readable manifest.json"),
        ("manifest.json", b"[]", "no readable manifest.json"),
    ],
)
def test_damage_is_named(folder: Path, name: str, content: bytes | None, message: str) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_manifest(folder)
