import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl4dialog.core import process_memory
from rl4dialog.core.process_memory import available_mib, keep_few_kernels, machine_mib, peak_resident_mib, resident_mib

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads the memory from /proc")


def test_a_peak_stays_when_the_memory_is_given_back_but_is_not_inherited():
    before = peak_resident_mib()
    block = bytearray(os.urandom(1)) * (300 * 2**20)
    held = resident_mib()
    del block
    assert held > 300
    assert peak_resident_mib() > held - 1  # the kernel counts in batches
    assert peak_resident_mib() >= before
    block = bytearray(os.urandom(1)) * (300 * 2**20)
    code = "from rl4dialog.core.process_memory import peak_resident_mib; print(peak_resident_mib())"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    del block
    assert 1 < float(found.stdout) < 200


def test_available_memory_is_within_the_machine(tmp_path, monkeypatch):
    assert 0 < available_mib() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
    limit, used = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(process_memory, "_CGROUPS", ((limit, used),))
    used.write_text(f"{2 * 2**20}\n")
    limit.write_text(f"{5 * 2**20}\n")
    assert available_mib() == 3 and machine_mib() == 5
    limit.write_text("max\n")
    assert available_mib() > 3


# Between blocks of 1 MiB lie others that stay, so that the heap cannot shrink by itself.
_GAPS = """
import ctypes
from rl4dialog.core.process_memory import keep_freed_memory, return_unused_memory
from rl4dialog.core.process_memory import resident_mib
c = ctypes.CDLL(None)
c.malloc.restype, c.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
keep_freed_memory()
blocks = []
for _ in range(100):
    blocks.append(c.malloc(2**20))
    ctypes.memset(blocks[-1], 1, 2**20)
    c.malloc(2**17)
full = resident_mib()
for block in blocks:
    c.free(block)
kept = resident_mib()
return_unused_memory()
print(full - kept, kept - resident_mib())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs the GNU C library")
def test_gaps_are_kept_until_they_are_returned():
    done = subprocess.run([sys.executable, "-c", _GAPS], capture_output=True, text=True, check=True)
    freed_by_itself, returned = map(float, done.stdout.split())
    assert freed_by_itself < 10
    assert returned > 90


def test_few_kernels_are_kept_unless_the_user_chose(monkeypatch):
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    keep_few_kernels()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "128"
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    keep_few_kernels()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
