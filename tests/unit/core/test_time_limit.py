"""A limit interrupts what waits and what swallows it."""

import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import regex

from rl4dialog.core import time_limit as module
from rl4dialog.core.time_limit import TimeIsUp, matched, time_limit


def test_body_that_waits_is_interrupted_and_one_in_time_is_not():
    before = signal.getsignal(signal.SIGALRM)
    signal.setitimer(signal.ITIMER_REAL, 0)  # the limit of the test itself
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


def test_limit_around_another_one_stays():
    began = time.monotonic()
    with pytest.raises(TimeIsUp), time_limit(0.1):
        with pytest.raises(TimeIsUp), time_limit(0.01):
            threading.Event().wait()
        with time_limit(600):
            pass
        threading.Event().wait(600)
    assert time.monotonic() - began < 600


@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize(("function", "others"), [(regex.search, ()), (regex.fullmatch, ()), (regex.sub, ("-",))])
def test_pattern_has_a_limit_in_every_thread(monkeypatch, in_thread, function, others):
    def found(pattern, text):
        try:
            return matched(function, pattern, text, *others, flags=re.IGNORECASE)
        except TimeoutError as error:
            return str(error)

    with ThreadPoolExecutor(1) as pool:

        def call(*given):
            return pool.submit(found, *given).result() if in_thread else found(*given)

        own = getattr(re, function.__name__)("(B+)", *others, "abbc\ud800", flags=re.IGNORECASE)
        match = call("(B+)", "abbc\ud800")
        assert match == own if isinstance(own, str) else (match and match.span(1)) == (own and own.span(1))
        monkeypatch.setattr(module, "PATTERN_S", 0.3)
        assert call("(a|aa)+$", "a" * 90 + "!") == (
            "the pattern '(a|aa)+$' takes more than 0.3 s for a text of 91 characters; write it without repetitions of "
            "repetitions, such as (a+)+"
        )


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
