"""Checks that a process can fork safely: no open files, sockets or databases, and no threads but the main one.

Forked processes share the position in an open file, and receive each other's answers from a socket or database. Threads
do not survive a fork, while locks that they hold stay locked forever. Locks that are not held are harmless.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from rl4dialog.core.errors import EnvWorkerError

_PROCESS = Path("/proc/self")
# Sharing these is harmless, because reads do not affect other processes.
_SHAREABLE = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# A thread of an allocator that pandas loads with pyarrow; it restarts in a forked process.
_THREADS_THAT_SURVIVE = ("jemalloc_bg_thd",)
# Time for a thread to end after its owner is gone.
_GRACE_S = 1.0

ADVICE = (
    "Open files, sockets, databases, locks and threads belong to one process: create them on first use, in the worker, "
    "not in a constructor or at import. env.vec_env: dummy uses no workers"
)


@dataclass(frozen=True)
class Holdings:
    """Open files and threads of this process; empty without ``/proc``.

    Attributes:
        files: Number and name of each file descriptor.
        threads: Number of each thread.
    """

    files: frozenset[tuple[int, str]]
    threads: frozenset[int]

    @classmethod
    def now(cls) -> Holdings:
        files = set()
        for entry in _entries("fd"):
            try:
                files.add((int(entry), os.readlink(_PROCESS / "fd" / entry)))
            except OSError:  # the descriptor of the folder itself
                continue
        return cls(frozenset(files), frozenset(map(int, _entries("task"))))


def check_can_fork(before: Holdings) -> None:
    """Check that no files or threads were opened or started that forked processes would share or miss.

    Args:
        before: Files and threads to ignore.

    Raises:
        EnvWorkerError: If there are any; the message names them.
    """
    gc.collect()
    deadline = time.monotonic() + _GRACE_S
    while (found := _threads_since(before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    found += _files_since(before)
    if found:
        raise EnvWorkerError(
            f"the environment workers would share {', '.join(found)}, which a module opened or started while a reward, "
            f"the partner or a sample was loaded. {ADVICE}."
        )


def _files_since(before: Holdings) -> list[str]:
    mapped = _mapped_files()
    return [
        f"the open file {name}" if name.startswith("/") else f"an open {name.split(':')[0]} ({name})"
        for number, name in sorted(Holdings.now().files - before.files)
        if name not in _SHAREABLE and not (name in mapped and _is_read_only(number))
    ]


def _threads_since(before: Holdings) -> list[str]:
    known = {t.native_id: t.name for t in threading.enumerate() if t is not threading.main_thread()}
    found = [f"the thread {name!r}" for number, name in known.items() if number not in before.threads]
    for number in Holdings.now().threads - before.threads - known.keys():
        name = _read(f"task/{number}/comm").strip()
        if name and name not in _THREADS_THAT_SURVIVE:
            found.append(f"a library's thread ({name})")
    return found


def _mapped_files() -> set[str]:
    """Files that are mapped into memory, for which no position is shared."""
    return {line.split(maxsplit=5)[5] for line in _read("maps").splitlines() if line.count(" ") >= 5 and "/" in line}


def _is_read_only(descriptor: int) -> bool:
    flags = next((line.split()[1] for line in _read(f"fdinfo/{descriptor}").splitlines() if "flags" in line), "0")
    return int(flags, 8) & os.O_ACCMODE == os.O_RDONLY


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(_PROCESS / folder)
    except OSError:
        return []


def _read(name: str) -> str:
    try:
        return (_PROCESS / name).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
