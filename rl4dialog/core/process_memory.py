"""What processes hold of main memory, in MiB; numbers of other processes need Linux."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def resident_mib(pid: int | str = "self") -> float:
    """What a process holds now."""
    return _status_mib(pid, "VmRSS")


def peak_resident_mib() -> float:
    """The most that this process has held."""
    if Path("/proc/self/status").exists():
        # Not getrusage, which on Linux counts what the process that started this one held.
        return _status_mib("self", "VmHWM")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


def own_mib(pid: int) -> float:
    """What a process holds and shares with no other."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def _status_mib(pid: int | str, key: str) -> float:
    path = Path(f"/proc/{pid}/status")
    if not path.exists():
        return peak_resident_mib()
    return next(int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(key)) / 1024
