"""Memory use of processes, in MiB; values of other processes require Linux."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

# Limit and use of a container's memory, in bytes: Linux control groups, versions 2 and 1.
_CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


def resident_mib(pid: int | str = "self") -> float:
    """Current resident memory of a process."""
    return _status_mib(pid, "VmRSS")


def peak_resident_mib() -> float:
    """Peak resident memory of this process."""
    if Path("/proc/self/status").exists():
        # On Linux, getrusage includes the memory of the parent process at the time of the fork.
        return _status_mib("self", "VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


def own_mib(pid: int) -> float:
    """Memory of a process that is not shared with others."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def available_mib() -> float:
    """Memory available to a process, on the machine and within the limits of its container."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable"))
        free = int(line.split()[1]) / 1024
    else:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
    for limit, used in _CGROUPS:
        if limit.exists() and used.exists() and (number := limit.read_text().strip()).isdigit():
            free = min(free, (int(number) - int(used.read_text())) / 2**20)
    return max(free, 0.0)


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later; memory in use is ``hblkhd`` plus ``uordblks``."""

    _fields_ = [("counts", ctypes.c_size_t * 10)]
    HBLKHD, UORDBLKS = 4, 7


def heap_mib() -> float | None:
    """Memory allocated by malloc and not freed, in the main arena of this process; ``None`` if unavailable.

    Unlike resident memory, it does not grow with fragmentation of the heap.
    """
    mallinfo = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    mallinfo.restype = _MallInfo
    counts = mallinfo().counts
    return float(counts[_MallInfo.HBLKHD] + counts[_MallInfo.UORDBLKS]) / 2**20


def _status_mib(pid: int | str, key: str) -> float:
    path = Path(f"/proc/{pid}/status")
    if not path.exists():
        return peak_resident_mib()
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(key)) / 1024
