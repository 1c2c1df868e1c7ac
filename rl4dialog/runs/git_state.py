"""Which commit of a git repository a folder is at, and what it has beyond that. Only reads; git need not be there."""

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
    """A repository as it is now.

    Attributes:
        root: Its folder.
        commit: What is checked out.
        differs: Whether a tracked file is not as in the commit, or there are files that git does not know.
        untracked: The first of those files.
        diff: What differs in tracked files, at most :data:`MAX_DIFF_BYTES` of it.
        diff_is_cut: Whether there was more.
    """

    root: str
    commit: str
    differs: bool
    untracked: list[str]
    diff: str
    diff_is_cut: bool


def git_state(folder: Path, tracks: str | None = None) -> GitState | None:
    """The repository that a folder lies in.

    Args:
        folder: Anywhere inside it.
        tracks: A file of the folder that the repository must hold. An installed package may lie inside a repository
            that does not.

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
    # Somebody may be at work in the repository, and must not find it locked.
    return {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}


def _git(folder: Path, *arguments: str) -> str | None:
    """What a git command prints; ``None`` if it fails."""
    try:
        done = subprocess.run(
            _command(folder, *arguments), env=_environment(), capture_output=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def _diff(root: Path) -> bytes:
    """What tracked files have beyond the commit: as much as is wanted, and one byte more if there is more."""
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
