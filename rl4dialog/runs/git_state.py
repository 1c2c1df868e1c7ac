"""The git commit of a folder and its uncommitted changes. Read-only; works without git."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 20
MAX_DIFF_BYTES = 1_000_000
_MAX_UNTRACKED = 100


@dataclass(frozen=True)
class GitState:
    """The current state of a repository.

    Attributes:
        root: Root folder of the repository.
        commit: Hash of the checked-out commit.
        differs: Whether there are uncommitted changes or untracked files.
        untracked: The first untracked files.
        diff: Uncommitted changes of tracked files, at most :data:`MAX_DIFF_BYTES`.
        diff_is_cut: Whether the diff was longer.
    """

    root: str
    commit: str
    differs: bool
    untracked: list[str]
    diff: str
    diff_is_cut: bool


def git_state(folder: Path, tracks: str | None = None) -> GitState | None:
    """Return the state of the repository that contains a folder.

    Args:
        folder: Any folder inside the repository.
        tracks: A file in the folder that the repository must track. An installed package may be inside a repository
            that does not track it.

    Returns:
        ``None`` without git, without a repository, or without a commit in it.
    """
    if tracks is not None and not _git(folder, "ls-files", "--", tracks):
        return None
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    root = _git(folder, "rev-parse", "--show-toplevel")
    if commit is None or root is None:
        return None
    status = _git(folder, "status", "--porcelain", "--untracked-files=normal", "--", root.strip()) or ""
    untracked = [line[3:] for line in status.splitlines() if line.startswith("??")]
    diff = _diff(Path(root.strip()))
    return GitState(
        root=root.strip(),
        commit=commit.strip(),
        differs=bool(status.strip()),
        untracked=untracked[:_MAX_UNTRACKED],
        diff=diff[:MAX_DIFF_BYTES].decode("utf-8", "replace"),
        diff_is_cut=len(diff) > MAX_DIFF_BYTES,
    )


def _command(folder: Path, *arguments: str) -> list[str]:
    return ["git", "-C", str(folder), *arguments]


def _environment() -> dict[str, str]:
    # Do not lock a repository that someone may be working in.
    return {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of a git command; ``None`` if it fails."""
    try:
        done = subprocess.run(
            _command(folder, *arguments), env=_environment(), capture_output=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def _diff(root: Path) -> bytes:
    """Diff of tracked files against the commit, with one byte more than the limit if it is longer."""
    command = _command(root, "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv")
    try:
        with subprocess.Popen(
            command, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            diff = process.stdout.read(MAX_DIFF_BYTES + 1)
            process.kill()
    except OSError:
        return b""
    return diff
