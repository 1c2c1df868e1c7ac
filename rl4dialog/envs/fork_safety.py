"""What a process must not hold when it forks: open files, sockets and databases, and threads other than its first.

Forked processes share one position in an open file, and each other's answers from a socket or database. A thread is not
there after a fork, while the locks that it held stay locked for ever. A lock that nobody holds does no harm.
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
# Nothing is read from these that another process could miss.
_SHAREABLE = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
# An allocator's, which pandas brings along with pyarrow; it starts anew in a forked process.
_THREADS_THAT_SURVIVE = ("jemalloc_bg_thd",)
# How long a thread whose owner is gone may take to end.
_GRACE_S = 1.0

ADVICE = (
    "An open file, socket, database or lock, and a thread, belong to one process: open or start it at first use, in "
    "the worker, not in a constructor or when a module is imported. env.vec_env: dummy has no workers"
)


@dataclass(frozen=True)
class Holdings:
    """What this process holds now; nothing is found where there is no ``/proc``.

    Attributes:
        files: Number and name of each descriptor.
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
            except OSError:  # that of the folder itself
                continue
        return cls(frozenset(files), frozenset(map(int, _entries("task"))))


def check_can_fork(before: Holdings) -> None:
    """Check that nothing has been opened and no thread started that forked processes would share or miss.

    Args:
        before: What may stay.

    Raises:
        EnvWorkerError: If something has, by its name.
    """
    gc.collect()
    deadline = time.monotonic() + _GRACE_S
    while (found := _threads_since(before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    found += _files_since(before)
    if found:
        raise EnvWorkerError(
            f"the environment workers would share {', '.join(found)}, which a module opened or started when a reward, "
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
    """Those that are read through memory, which has no position in a file."""
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
