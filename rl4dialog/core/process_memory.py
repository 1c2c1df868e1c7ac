"""Memory of processes: their use of it in MiB, and what the allocator and oneDNN keep. Mostly for Linux."""

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
    return _status_mib(pid, "VmRSS")


def peak_resident_mib() -> float:
    if Path("/proc/self/status").exists():
        # On Linux, getrusage includes the memory of the parent process at the time of the fork.
        return _status_mib("self", "VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


def available_mib() -> float:
    """Memory available to a process, on the machine and within the limits of its container."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        line = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable"))
        free = int(line.split()[1]) / 1024
    else:
        free = machine_mib()
    for limit, used in _CGROUPS:
        if limit.exists() and used.exists() and (number := limit.read_text().strip()).isdigit():
            free = min(free, (int(number) - int(used.read_text())) / 2**20)
    return max(free, 0.0)


def machine_mib() -> float:
    """Memory of the machine, within the limits of the process's container."""
    limits = [limit.read_text().strip() for limit, _ in _CGROUPS if limit.exists()]
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([whole, *(int(limit) for limit in limits if limit.isdigit())]) / 2**20


def _status_mib(pid: int | str, key: str) -> float:
    path = Path(f"/proc/{pid}/status")
    if not path.exists():
        return peak_resident_mib()
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(key)) / 1024


# From malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_ALWAYS, _LARGE = 2**20, 2**24
_N_KERNELS = "128"


def keep_freed_memory() -> bool:
    """Stop the allocator from returning blocks below 16 MiB to the system, which costs page faults when needed again.

    Tensors of an update have the same sizes again and again. Larger blocks, such as the logits of a large vocabulary,
    are returned: kept ones of different sizes leave gaps that add up to many times their size, and computing them takes
    much longer than the page faults. Only the GNU C library supports these settings; returns whether they are accepted.
    """
    return _return_blocks_above(_LARGE)


def return_freed_memory() -> bool:
    """Make the allocator return free blocks of 1 MiB or more at once: slower, but gaps cost no memory."""
    return _return_blocks_above(_ALWAYS)


def return_unused_memory() -> None:
    """Return all free memory to the system, once, including gaps between blocks in use.

    Blocks that :func:`keep_freed_memory` keeps leave gaps, which grow from iteration to iteration if lengths vary. Only
    the GNU C library supports this; elsewhere nothing happens.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_few_kernels() -> None:
    """Limit oneDNN, which computes bf16 matrix products on CPUs, to its last 128 kernels. Call this before using torch.

    There is a kernel for each shape, and replies of all lengths make new shapes all the time. By default, oneDNN keeps
    1,024 kernels, which take hundreds of MiB. Layers of a model share shapes, so the last kernels are those reused.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", _N_KERNELS)


def _return_blocks_above(n_bytes: int) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, n_bytes)) and bool(mallopt(_M_TRIM_THRESHOLD, n_bytes))
