"""Checks that a process can fork: no open files, sockets or databases, and no threads but the main one.

Forked processes share the position in an open file, and receive each other's answers from a socket or database. Threads
do not survive a fork, while locks that they hold stay locked forever.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from pathlib import Path

from rl4dialog.core.errors import EnvWorkerError

_PROCESS = Path("/proc/self")
# Devices whose reads do not affect other processes, and the thread of an allocator (pyarrow's), which survives a fork.
_HARMLESS = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "jemalloc_bg_thd"}
# Time for a thread to end after its owner is gone.
_GRACE_S = 1.0

ADVICE = (
    "Open files, sockets, databases, locks and threads belong to one process: create them on first use, in the worker, "
    "not in a constructor or at import. env.vec_env: dummy uses no workers"
)


def holdings() -> set[str]:
    """Open files and threads that forked processes would share or miss; empty without ``/proc``."""
    if not _PROCESS.is_dir():
        return set()
    found = set()
    # No position is shared for files that are mapped into memory.
    maps = (_PROCESS / "maps").read_text(errors="replace")
    for entry in os.listdir(_PROCESS / "fd"):
        with contextlib.suppress(OSError):  # the descriptor of the folder itself
            name = os.readlink(_PROCESS / "fd" / entry)
            flags = int((_PROCESS / "fdinfo" / entry).read_text().split()[3], 8)
            is_mapped = f" {name}\n" in maps and flags & os.O_ACCMODE == os.O_RDONLY
            if name not in _HARMLESS and not is_mapped:
                found.add(f"the open {'file ' if name[0] == '/' else ''}{name}")
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    for entry in os.listdir(_PROCESS / "task"):
        with contextlib.suppress(OSError):  # a thread that has just ended
            name = (_PROCESS / "task" / entry / "comm").read_text().strip()
            if name not in _HARMLESS and int(entry) != os.getpid():
                found.add(f"the thread {names.get(int(entry), name)!r}")
    return found


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
            f"the workers would share {', '.join(sorted(found))}, which a module opened or started while a reward, the "
            f"partner or a sample was loaded. {ADVICE}."
        )
