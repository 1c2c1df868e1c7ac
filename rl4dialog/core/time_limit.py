"""A time limit for code that might never return."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        is_running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
