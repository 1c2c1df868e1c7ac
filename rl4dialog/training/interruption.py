"""Handling of SIGTERM and SIGINT, without torch. The run is saved first if that loses nothing."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rl4dialog.core.errors import RunInterrupted

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """A context manager that handles the signals and restores the previous handlers on exit.

    A signal raises :class:`RunInterrupted`. While ``deferred`` is set it is only recorded; the training loop then saves
    and raises. A second Ctrl-C raises ``KeyboardInterrupt`` immediately; a second SIGTERM changes nothing, as both a
    scheduler and the command that started this process may send one. Signals are handled in the main thread only.

    Attributes:
        deferred: Whether to defer the first signal.
        received: Name of the deferred signal.
    """

    def __init__(self) -> None:
        self.deferred = False
        self.received: str | None = None

    def __enter__(self) -> StopSignals:
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, StopSignals):
                outer.received = outer.received or self.received

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.received = signal.Signals(number).name
        if not self.deferred:
            raise RunInterrupted(f"stopped by {self.received}")
        print(f"\n{self.received}: stopping after saving the run; Ctrl-C stops immediately", file=sys.stderr)


@contextmanager
def ended_at_once() -> Iterator[None]:
    """A signal ends this process at once, without handlers: for code that they cannot interrupt."""
    numbers = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_sigterm() -> None:
    """Let no further SIGTERM, such as the second one of a scheduler, replace the exit code of this process."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
