"""Checks that a process can fork: no open files, sockets or databases, and no threads but the main one.

Forked processes share the position in an open file, and receive each other's answers from a socket or database. Threads
do not survive a fork, while locks that they hold stay locked forever.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

from rl4dialog.core.errors import EnvWorkerError

_PROCESS = Path("/proc/self")
# Reads from these do not affect other processes.
_SHAREABLE = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# A thread of an allocator that pandas loads with pyarrow; it restarts in a forked process.
_THREADS_THAT_SURVIVE = ("jemalloc_bg_thd",)
# Time for a thread to end after its owner is gone.
_GRACE_S = 1.0

ADVICE = (
    "Open files, sockets, databases, locks and threads belong to one process: create them on first use, in the worker, "
    "not in a constructor or at import. env.vec_env: dummy uses no workers"
)


def holdings() -> set[str]:
    """Names of the open files and threads that forked processes would share or miss; empty without ``/proc``."""
    if not _PROCESS.is_dir():
        return set()
    return _open_files() | _threads()


def check_can_fork(before: set[str]) -> None:
    """Check that nothing was opened or started that forked processes would share or miss.

    Args:
        before: Earlier :func:`holdings`, to be ignored.

    Raises:
        EnvWorkerError: If something was; the message names it.
    """
    gc.collect()
    deadline = time.monotonic() + _GRACE_S
    while (found := holdings() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    if found:
        raise EnvWorkerError(
            f"the environment workers would share {', '.join(sorted(found))}, which a module opened or started while "
            f"a reward, the partner or a sample was loaded. {ADVICE}."
        )


def _open_files() -> set[str]:
    # No position is shared for files that are mapped into memory.
    maps = (_PROCESS / "maps").read_text(errors="replace").splitlines()
    mapped = {line.split(maxsplit=5)[5] for line in maps if "/" in line}
    found = set()
    for entry in os.listdir(_PROCESS / "fd"):
        try:
            name = os.readlink(_PROCESS / "fd" / entry)
            flags = (_PROCESS / "fdinfo" / entry).read_text().split()[3]
        except OSError:  # the descriptor of the folder itself
            continue
        is_read_only = int(flags, 8) & os.O_ACCMODE == os.O_RDONLY
        if name not in _SHAREABLE and not (name in mapped and is_read_only):
            found.add(f"the open file {name}" if name[0] == "/" else f"an open {name.split(':')[0]} ({name})")
    return found


def _threads() -> set[str]:
    names = {thread.native_id: f"the thread {thread.name!r}" for thread in threading.enumerate()}
    found = set()
    for entry in os.listdir(_PROCESS / "task"):
        try:
            name = (_PROCESS / "task" / entry / "comm").read_text().strip()
        except OSError:  # a thread that has just ended
            continue
        if int(entry) != threading.main_thread().native_id and name not in _THREADS_THAT_SURVIVE:
            found.add(names.get(int(entry), f"a library's thread ({name})"))
    return found
