"""A limit interrupts what waits and what swallows it."""

import signal
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
