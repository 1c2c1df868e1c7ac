"""Reading text files with errors that name file and line."""

from __future__ import annotations

import gzip
import io
import os
import re
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from rl4dialog.core import files
from rl4dialog.core.errors import DataError
from rl4dialog.data import text_files
from rl4dialog.data.text_files import decode_lines, expand_path, read_lines, read_zip_lines, stream_lines, walk_files


def test_lines_end_at_newlines_only() -> None:
    data = "a\u2028b\x85c\r\nd\n".encode()
    assert decode_lines(data, "f") == ["a\u2028b\x85c", "d"]


def test_byte_order_mark_is_no_text() -> None:
    assert decode_lines(b"\xef\xbb\xbfa\nb", "f") == ["a", "b"]


def test_empty_lines_inside_stay() -> None:
    assert decode_lines(b"a\n\nb\n", "f") == ["a", "", "b"]


def test_undecodable_line_is_named() -> None:
    with pytest.raises(DataError, match=r"folder/x\.txt:2: not valid UTF-8"):
        decode_lines(b"fine\nbr\xffken\n", "folder/x.txt")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.txt cannot be read: No such file"):
        read_lines(tmp_path / "gone.txt")


def test_zip_members_are_found_by_base_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("__MACOSX/in/a.txt", "junk")
        archive.writestr("in/a.txt", "one\ntwo\n")
    assert read_zip_lines(tmp_path / "x.zip", "a.txt") == ["one", "two"]
    with pytest.raises(DataError, match=r"x\.zip does not contain b\.txt"):
        read_zip_lines(tmp_path / "x.zip", "b.txt")


def test_broken_zip_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"x\.zip cannot be read as a zip file"):
        read_zip_lines(tmp_path / "x.zip", "a.txt")


def test_walk_gives_the_same_files_from_folder_and_archives(tmp_path: Path) -> None:
    files = {"top/b.txt": b"2", "top/in/a.txt": b"1", "top/skip.md": b"0"}
    for name, data in files.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(data)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive, tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
        for name in files:
            archive.write(tmp_path / "folder" / name, name)
            tar.add(tmp_path / "folder" / name, name)
    for place in ("folder", "x.zip", "x.tar.gz"):
        found = list(walk_files(tmp_path / place, lambda name: name.startswith("top/") and name.endswith(".txt")))
        assert [data for _, data in found] == [b"2", b"1"]
        assert found[1][0] == str(tmp_path / place / "top/in/a.txt")


@pytest.mark.parametrize("name", ["x.tar.gz", "x.tgz", "x.zip", "gone.zip"])
def test_broken_archive_is_named(tmp_path: Path, name: str) -> None:
    if name != "gone.zip":
        (tmp_path / name).write_bytes(b"no archive")
    with pytest.raises(DataError, match=rf"{name} cannot be read"):
        list(walk_files(tmp_path / name, lambda name: True))


def test_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").mkdir()
    assert expand_path("~/data") == tmp_path / "data"


def test_missing_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere does not exist"):
        expand_path(tmp_path / "nowhere")


def test_path_of_wrong_type_is_an_error() -> None:
    with pytest.raises(DataError, match="path must be a file or folder name, not 3"):
        expand_path(3)  # type: ignore[arg-type]


def test_encrypted_zip_is_named(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a.txt", "one\n")
    data = bytearray((tmp_path / "x.zip").read_bytes())
    for header, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(header) + flags] |= 1
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(DataError, match=r"x\.zip/a\.txt is encrypted; unpack it"):
        read_zip_lines(tmp_path / "x.zip", "a.txt")


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz", "x.gz"])
def test_archive_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(files, "_SURELY_FITS", 2**20)
    path, bomb = tmp_path / name, bytes(2**22)
    if name == "x.gz":
        with gzip.open(path, "wb", compresslevel=9) as file:
            file.write(bomb)
    elif name == "x.zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("a.txt", bomb)
    else:
        with tarfile.open(path, "w:gz") as tar:
            info = tarfile.TarInfo("a.txt")
            info.size = len(bomb)
            tar.addfile(info, io.BytesIO(bomb))
    with pytest.raises(DataError, match=rf"{re.escape(name)} expands to more than 200 times its size"):
        read_lines(path) if name == "x.gz" else list(walk_files(path, lambda name: True))


def test_zip_with_a_false_size_is_not_unpacked_beyond_it(tmp_path: Path) -> None:
    path, content = tmp_path / "x.zip", bytes(2**26)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", content)
    path.write_bytes(path.read_bytes().replace(struct.pack("<L", len(content)), struct.pack("<L", 10)))
    del content
    tracemalloc.start()
    with pytest.raises(DataError, match=r"x\.zip cannot be read as a zip file: Bad CRC"):
        list(walk_files(path, lambda name: True))
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.zip")
    with pytest.raises(DataError, match=r"pipe\.zip cannot be read: it is a named pipe; use a regular file"):
        read_lines(tmp_path / "pipe.zip")
    with pytest.raises(DataError, match=r"pipe\.zip is neither a folder nor an archive"):
        list(walk_files(tmp_path / "pipe.zip", lambda name: True))


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz"])
def test_lines_are_streamed_whatever_parts_the_file_is_read_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    data = "\ufeffeins\r\n\nzwölf\n\u2028drei".encode()
    written = data if name == "x.txt" else gzip.compress(data[:9]) + gzip.compress(data[9:])
    (tmp_path / name).write_bytes(written)
    for size in (1, 2, 7, 100):
        monkeypatch.setattr(text_files, "_BYTES_AT_ONCE", size)
        assert list(stream_lines(tmp_path / name)) == ["eins", "", "zwölf", "\u2028drei"]
    (tmp_path / name).write_bytes(written + (b"\nbr\xff" if name == "x.txt" else gzip.compress(b"\nbr\xff")))
    lines = stream_lines(tmp_path / name)
    assert [next(lines) for _ in range(4)] == ["eins", "", "zwölf", "\u2028drei"], "lines before the error are read"
    with pytest.raises(DataError, match=rf"{name}:5: not valid UTF-8"):
        next(lines)
