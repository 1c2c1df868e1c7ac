"""What a container does with its arguments: give up root's rights, then start the program that they name.

``test`` runs the test-suite, a name of :data:`PROGRAMS` that program, and all else is a command of ``rl4dialog``.
Only the standard library is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

RUNS, CACHE = Path("/runs"), Path("/cache")
PROGRAMS = ("accelerate", "bash", "python", "tensorboard")
DEFAULT_USER = 1000  # rl4dialog in the image
_WHOLE_RANGE = ["0", "0", "4294967295"]  # of /proc/self/uid_map: no user namespace


def command(arguments: Sequence[str]) -> list[str]:
    """The command line that a container's arguments stand for."""
    first, rest = (arguments[0], list(arguments[1:])) if arguments else ("--help", [])
    if first == "test":
        # Nobody may write to the program's folder, so pytest keeps nothing there.
        workers = [] if any(_is_number_of_workers(text) for text in rest) else ["--numprocesses", "auto"]
        return ["python", "-m", "pytest", "-p", "no:cacheprovider", *workers, *rest]
    if first in PROGRAMS:
        return [first, *rest]
    if first == "train":
        # The last one given holds, so that a user's own folder does.
        return ["rl4dialog", "train", "--base_path_to_store_results", str(RUNS), *rest]
    return ["rl4dialog", first, *rest]


def _is_number_of_workers(text: str) -> bool:
    return text.startswith(("-n", "--numprocesses"))


def unprivileged_user(runs: Path) -> tuple[int, int]:
    """User and group that results are written as: those of the folder for results, unless it is root's."""
    status = runs.stat()
    return (status.st_uid, status.st_gid) if status.st_uid else (DEFAULT_USER, DEFAULT_USER)


def is_root_of_the_host(uid_map: str) -> bool:
    """Whether a process whose user id is 0 is root outside the container too.

    Args:
        uid_map: Content of ``/proc/self/uid_map``. In a rootless engine it maps 0 to the user who started the engine.
    """
    return uid_map.split() == _WHOLE_RANGE


def give_up_root(folders: Sequence[Path], user: int, group: int) -> None:
    """Hand root's folders to a user, and become that user.

    Raises:
        PermissionError: If the container may not do that.
    """
    for folder in folders:
        if folder.stat().st_uid == 0:
            os.chown(folder, user, group)
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)


def unwritable(folder: Path) -> str | None:
    """What to do about a folder for results that cannot be written; ``None`` if it can."""
    if os.access(folder, os.W_OK | os.X_OK):
        return None
    owner, user = folder.stat().st_uid, os.getuid()
    return (
        f"{folder} belongs to user {owner}, and user {user}, as whom this container runs, may not write to it. "
        "Mount a folder of your own and run as yourself: mkdir -p runs; "
        f'docker run --user "$(id -u):$(id -g)" -v "$PWD/runs:{folder}" ...'
    )


def main(arguments: Sequence[str]) -> int:
    """Replace this process by the program; comes back only with an error."""
    if os.geteuid() == 0 and is_root_of_the_host(Path("/proc/self/uid_map").read_text()):
        try:
            give_up_root([RUNS, CACHE], *unprivileged_user(RUNS))
        except PermissionError as error:
            print(
                f"error: this container may not change its user ({error}); choose one: docker run --user 1000:1000",
                file=sys.stderr,
            )
            return 2
    problem = unwritable(RUNS) if arguments and arguments[0] == "train" else None
    if problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    line = command(arguments)
    os.execvp(line[0], line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
