"""A time limit for code that might never return, and for regular expressions of users."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
PATTERN_S = 10.0
"""Longest time that a regular expression may take on one text."""

# Seconds between further interruptions of a body that catches the first one.
_AGAIN_S = 1.0


class TimeIsUp(BaseException):
    """Raised in code that exceeds its limit; not an ``Exception``, so that the code's own handlers do not catch it."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Interrupt the body by `TimeIsUp` if it takes too long.

    Python code is interrupted anywhere, including waits and sleeps. Native code of a library is interrupted when it
    returns to Python. The limit is ignored outside the main thread, and on systems without SIGALRM. A body that uses
    SIGALRM itself overrides this limit.
    """
    if seconds is None or not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    is_running = True

    def ring(*_: Any) -> None:
        if is_running:
            raise TimeIsUp

    before, began = signal.signal(signal.SIGALRM, ring), time.monotonic()
    outer_s, again_s = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        is_running = False
        left_s = max(outer_s - (time.monotonic() - began), 1e-3) if outer_s else 0.0  # of a limit around this one
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left_s, again_s)


def matched(function: Callable[..., T], pattern: str, text: str, *others: Any, flags: int = 0) -> T:
    """Result of a function of ``regex``, such as ``regex.search``; `others` are arguments before the text.

    A pattern such as ``(a|aa)+$`` takes a time exponential in the text: after `PATTERN_S` seconds, a `TimeoutError`, in
    every thread. The package reads patterns as Python's ``re`` does, whose own functions nothing interrupts in threads.
    """
    try:
        return function(pattern, *others, text, flags=flags, timeout=PATTERN_S)
    except TimeoutError:
        what = f"the pattern {pattern!r} takes more than {PATTERN_S:g} s for a text of {len(text):,} characters"
        raise TimeoutError(f"{what}; write it without repetitions of repetitions, such as (a+)+") from None
