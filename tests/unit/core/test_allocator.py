"""Memory that stays with the process after tensors are freed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from rl4dialog.core.allocator import keep_few_kernels

# Between blocks of 1 MiB lie others that stay, so that the heap cannot shrink by itself.
_GAPS = """
import ctypes
from rl4dialog.core.allocator import keep_freed_memory, return_unused_memory
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
def test_gaps_are_kept_until_they_are_returned() -> None:
    done = subprocess.run([sys.executable, "-c", _GAPS], capture_output=True, text=True, check=True)
    freed_by_itself, returned = map(float, done.stdout.split())
    assert freed_by_itself < 10
    assert returned > 90


def test_few_kernels_are_kept_unless_the_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    keep_few_kernels()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "128"
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    keep_few_kernels()
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "7"
