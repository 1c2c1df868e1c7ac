"""Lines that are appended are whole, whatever happened to the file before."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rl4dialog.core import json_lines
from rl4dialog.core.errors import RunFolderError
from rl4dialog.core.json_lines import append_record, whole_lines, write_records

_ENDLESS = """
import itertools, pathlib, sys
from rl4dialog.core.json_lines import append_record
for n in itertools.count():
    append_record(pathlib.Path(sys.argv[1]), {"n": n, "text": "x" * 5000})
"""


def records(path: Path) -> list[Any]:
    return [json.loads(line) for line in whole_lines(path)]


def test_records_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.jsonl"
    for text in ("ä\n\u2028", "\ud800", ""):
        append_record(path, {"text": text})
    assert [record["text"] for record in records(path)] == ["ä\n\u2028", "\ud800", ""]
    assert path.read_bytes().count(b"\n") == 3


def test_cut_last_line_is_not_read_and_makes_way(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    append_record(path, {"n": 1})
    whole = path.read_bytes()
    line = json.dumps({"n": 2, "text": "ä{}"}, ensure_ascii=False).encode()
    for length in range(1, len(line)):
        path.write_bytes(whole + line[:length])
        assert records(path) == [{"n": 1}]
        append_record(path, {"n": 3})
        assert records(path) == [{"n": 1}, {"n": 3}]


def test_whole_last_line_without_an_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n{"n": 2}')
    assert records(path) == [{"n": 1}, {"n": 2}]
    append_record(path, {"n": 3})
    assert records(path) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_killed_writer_leaves_whole_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with subprocess.Popen([sys.executable, "-c", _ENDLESS, str(path)]) as writer:
        deadline = time.monotonic() + 60
        while (not path.exists() or path.stat().st_size < 50_000) and time.monotonic() < deadline:
            time.sleep(0.01)
        writer.kill()
    n_whole = len(records(path))
    assert n_whole > 0
    append_record(path, {"n": n_whole})
    assert [record["n"] for record in records(path)] == list(range(n_whole + 1))


def test_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    append_record(path, {"n": 1})

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(json_lines.os, "fsync", full)
    with pytest.raises(RunFolderError, match=r"a\.jsonl cannot be written: No space left on device"):
        append_record(path, {"n": 2})
    assert records(path) == [{"n": 1}]


@pytest.mark.parametrize("content", ["my notes", "my notes\nof today", "my notes\n", '[{"n": 1}]', '{"n": 1', "1\n2"])
def test_file_without_a_record_is_refused_and_stays(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(RunFolderError, match=r"a\.jsonl has no record .* left as it is"):
        append_record(path, {"n": 2})
    assert path.read_text() == content


def test_records_replace_a_file_only_once_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    write_records(path, [{"n": 1}])

    def full(file: Path, text: str, **settings: Any) -> None:
        file.write_bytes(text[:3].encode())
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(RunFolderError, match=r"a\.jsonl cannot be written: No space"):
        patch.setattr(Path, "write_text", full)
        write_records(path, [{"n": 2}])
    assert records(path) == [{"n": 1}] and list(tmp_path.iterdir()) == [path]
    write_records(path, [{"n": 2}])
    assert records(path) == [{"n": 2}] and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", ['{"n": 1, "rating": 1}\n', '{\n  "seed": 0\n}\n', "a\n"])
def test_file_of_other_records_is_not_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(RunFolderError, match=r"a\.jsonl has no record of this kind"):
        write_records(path, [{"n": 2}])
    assert path.read_text() == text
