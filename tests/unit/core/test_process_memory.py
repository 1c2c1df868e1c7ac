from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl4dialog.core import process_memory
from rl4dialog.core.process_memory import available_mib, heap_mib, own_mib, peak_resident_mib, resident_mib

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="reads the memory from /proc")


def test_a_peak_stays_when_the_memory_is_given_back() -> None:
    before = peak_resident_mib()
    block = bytearray(os.urandom(1)) * (300 * 2**20)
    held = resident_mib()
    del block
    assert held > 300
    assert peak_resident_mib() > held - 1  # the kernel counts in batches
    assert peak_resident_mib() >= before


def test_a_process_does_not_inherit_the_peak_of_the_one_that_started_it() -> None:
    block = bytearray(os.urandom(1)) * (300 * 2**20)
    code = "from rl4dialog.core.process_memory import peak_resident_mib; print(peak_resident_mib())"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    del block
    assert 1 < float(found.stdout) < 200


def test_heap_counts_what_is_in_use() -> None:
    if (before := heap_mib()) is None:
        pytest.skip("this system's malloc does not tell")
    block = bytearray(50 * 2**20)
    held = heap_mib()
    del block
    after = heap_mib()
    assert held is not None and after is not None
    assert held - before == pytest.approx(50, abs=5) and after - before == pytest.approx(0, abs=5)


def test_own_memory_is_a_part_of_the_resident() -> None:
    assert 0 < own_mib(os.getpid()) <= resident_mib(os.getpid())


def test_available_memory_is_within_the_machine_and_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < available_mib() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20
    limit, used = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(process_memory, "_CGROUPS", ((limit, used),))
    used.write_text(f"{2 * 2**20}\n")
    limit.write_text(f"{5 * 2**20}\n")
    assert available_mib() == 3
    limit.write_text("max\n")
    assert available_mib() > 3
