"""The state of a repository, and of what is none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rl4dialog.runs import git_state as module
from rl4dialog.runs.git_state import git_state

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *arguments: str) -> None:
    names = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", "-C", str(folder), *names, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "a.txt").write_text("one\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_clean_repository_is_its_commit(repository: Path) -> None:
    state = git_state(repository / "inside")
    assert state is not None and len(state.commit) == 40
    assert Path(state.root) == repository.resolve()
    assert not state.differs and not state.diff and not state.diff_is_cut and not state.untracked


def test_changes_and_new_files_are_told(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repository / "inside" / "a.txt").write_text("two\n")
    (repository / "new.txt").write_text("new\n")
    state = git_state(repository / "inside")
    assert state is not None and state.differs and state.untracked == ["new.txt"]
    assert "-one\n+two\n" in state.diff and not state.diff_is_cut
    monkeypatch.setattr(module, "MAX_DIFF_BYTES", 10)
    state = git_state(repository)
    assert state is not None and len(state.diff) == 10 and state.diff_is_cut


def test_without_repository_commit_or_git_there_is_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert git_state(Path(__file__).parent) is None


def test_file_that_the_repository_around_it_does_not_hold_has_no_state(repository: Path) -> None:
    (repository / "inside" / "b.txt").write_text("x\n")
    assert git_state(repository / "inside", tracks="a.txt") is not None
    assert git_state(repository / "inside", tracks="b.txt") is None
