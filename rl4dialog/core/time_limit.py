"""A time limit for code that may never return."""

from __future__ import annotations

import faulthandler
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# A body that catches what the limit raises is interrupted again after so many seconds.
_AGAIN_S = 1.0
# How much longer a body that nothing interrupts may take before its process ends.
_GRACE_S = 10.0


class TimeIsUp(BaseException):
    """Raised in code that has reached its limit; no ``Exception``, so that its own handlers let it pass."""


@contextmanager
def time_limit(seconds: float | None, ends_process: bool = False) -> Iterator[None]:
    """Interrupt the body when it has taken too long.

    Python code is interrupted anywhere, and so is what waits or sleeps. What computes in a library's own code is
    interrupted when it returns to Python. There is no limit outside of a process' main thread, and on systems without
    SIGALRM. A body that uses that signal for a limit of its own puts itself in the place of this one.

    Args:
        seconds: How long the body may take; ``None`` for no limit.
        ends_process: Whether the process ends, with a traceback on stderr and exit code 1, 10 seconds after the limit
            if the body has not returned by then; a quarter of a millisecond for each call.

    Raises:
        TimeIsUp: In the body.
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
    if ends_process:
        faulthandler.dump_traceback_later(seconds + _GRACE_S, exit=True)
    try:
        yield
    finally:
        is_running = False
        if ends_process:
            faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
