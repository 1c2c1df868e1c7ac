import math
import os

import pytest

from benchmarks import soak
from benchmarks.task import FailingReward
from rl4dialog.core.process_memory import resident_mib


def test_slope_is_that_of_the_line():
    assert soak.kib_per_iteration([10.0, 10.5, 11.0, 11.5]) == pytest.approx(512)
    assert soak.kib_per_iteration([3.0] * 9) == pytest.approx(0, abs=1e-9)


def test_reward_fails_for_the_share_of_replies_that_was_asked_for():
    replies = [f"reply {i}" for i in range(5000)]
    for share in (0.01, 0.5):
        values = [FailingReward(share)("hello", reply, [], {}) for reply in replies]
        assert sum(map(math.isnan, values)) / 5000 == pytest.approx(share, rel=0.2)
    with pytest.raises(ConnectionError, match="does not answer"):
        FailingReward(1.0, "raise")("hello", "reply", [], {})


@pytest.mark.skipif(not soak.can_watch(), reason="reads the memory of workers from /proc")
def test_memory_of_all_processes_is_watched(capsys):
    held = soak.watch_memory(3, warm_up=1)
    assert list(held) == ["main", "main, heap in use", "worker 0", "worker 1"]
    assert all(len(series) == 3 and not min(series) < 1 for series in held.values())
    assert "KiB per iteration after 1" in capsys.readouterr().out


@pytest.mark.long
def test_two_runs_are_told_apart():
    config = soak.run_config(1)
    one, same = soak.run(config), soak.run(config)
    other = soak.run({**config, "seed": 1})
    assert one.equals(same) and not one.equals(other)


def test_heap_counts_what_is_in_use():
    if (before := soak.heap_mib()) is None:
        pytest.skip("this system's malloc does not tell")
    block = bytearray(50 * 2**20)
    held = soak.heap_mib()
    del block
    after = soak.heap_mib()
    assert held is not None and after is not None
    assert held - before == pytest.approx(50, abs=5) and after - before == pytest.approx(0, abs=5)


def test_own_memory_is_a_part_of_the_resident():
    assert 0 < soak.own_mib(os.getpid()) <= resident_mib()
