"""A limit interrupts what waits and what swallows, and ends a process that nothing interrupts."""

import signal
import subprocess
import sys
import threading
import time

import pytest

from rl4dialog.core import time_limit as module
from rl4dialog.core.time_limit import TimeIsUp, time_limit


def test_body_that_waits_is_interrupted_and_one_in_time_is_not():
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeIsUp), time_limit(0.05):
        threading.Event().wait()
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with time_limit(600):
        found = 1
    with time_limit(None):
        found += 1
    assert found == 2


def test_body_that_swallows_everything_is_interrupted_again(monkeypatch):
    monkeypatch.setattr(module, "_AGAIN_S", 0.05)
    n_swallowed = 0
    with pytest.raises(TimeIsUp), time_limit(0.05):
        while True:
            if n_swallowed == 2:
                time.sleep(600)
            try:
                time.sleep(600)
            except BaseException:
                n_swallowed += 1


def test_other_threads_have_no_limit():
    found = []

    def wait():
        with time_limit(1e-6):
            time.sleep(0.05)
        found.append("done")

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert found == ["done"]


HANGS = """
import signal, time
from rl4dialog.core import time_limit as module
module._GRACE_S = 0.1
with module.time_limit(600.0, ends_process=True):
    pass
# As a library that never returns to Python.
with module.time_limit(0.1, ends_process=True):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    def forever(): time.sleep(600)
    forever()
"""


def test_process_that_nothing_interrupts_ends_and_says_where():
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "in forever" in ended.stderr
