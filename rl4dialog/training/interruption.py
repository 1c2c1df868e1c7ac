"""Stopping a run from outside: SIGTERM and SIGINT, which save it where that is possible without a loss."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType

from rl4dialog.core.errors import RunInterrupted

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """A context manager that receives them; what was there before is there again afterwards.

    A signal raises :class:`RunInterrupted`; while ``deferred`` it is only noted, and it is for the training loop to
    save and to raise. A second one raises ``KeyboardInterrupt`` at once. Outside the main thread nothing is received.

    Attributes:
        deferred: Whether the first signal waits.
        received: Name of the signal that waits.
    """

    def __init__(self) -> None:
        self.deferred = False
        self.received: str | None = None

    def __enter__(self) -> StopSignals:
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
        if not self.deferred:
            raise RunInterrupted(f"stopped by {self.received}")
        print(f"\n{self.received}: the run is saved and stops; a second signal ends it at once", file=sys.stderr)
