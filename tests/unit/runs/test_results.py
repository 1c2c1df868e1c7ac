"""``result.json`` is there when, and only when, a run is complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl4dialog.core.errors import RunFolderError
from rl4dialog.runs.results import is_complete, read_result, write_result
from rl4dialog.runs.run_folder import RunFolder


def test_result_is_read_back(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "p", "e")
    folder.write_json("config.json", {})
    assert not is_complete(folder.root)
    with pytest.raises(RunFolderError, match=r"is not complete: it has no result\.json"):
        read_result(folder.root)
    write_result(folder, 7, {"test": {"a": 0.5}}, {"test": {"a": float("nan")}})
    assert is_complete(folder.root)
    assert read_result(folder.root) == {"iterations": 7, "test": {"before": {"a": 0.5}, "after": {"a": None}}}


def test_what_is_no_result_is_no_complete_run(tmp_path: Path) -> None:
    for text in ("", "[1]", "{}"):
        (tmp_path / "result.json").write_text(text)
        assert not is_complete(tmp_path)


def test_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"contains no config\.json; pass a run folder"):
        read_result(tmp_path)
    with pytest.raises(RunFolderError, match="nowhere does not exist"):
        read_result(tmp_path / "nowhere")
