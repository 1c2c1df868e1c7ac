"""The file of a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_files import write_run

from rl4dialog.core.errors import RunFolderError
from rl4dialog.runs.report.run_report import write_report


def test_page_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with pytest.raises(RunFolderError, match=r"a\.html cannot be written: No such file or directory; choose"):
        write_report(run, tmp_path / "none" / "a.html")
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(RunFolderError, match=r"folder\.html cannot be written"):
        write_report(run, tmp_path / "folder.html")
    assert not list(tmp_path.glob(".*.tmp"))


def test_half_of_a_character_in_a_reply_does_not_stop_the_page(tmp_path: Path) -> None:
    path = write_run(tmp_path) / "epoch_3_test_split_predictions.json"
    path.write_text(path.read_text().replace("reply 0", "reply \\ud83d"))
    assert "reply <mark>?</mark> at <mark>3</mark>" in write_report(tmp_path).read_text(encoding="utf-8")
