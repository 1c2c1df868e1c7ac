"""What SIGTERM and Ctrl-C do, once and repeated."""

from __future__ import annotations

import os
import signal

import pytest

from rl4dialog.core.errors import RunInterrupted
from rl4dialog.training.interruption import StopSignals


def test_first_signal_stops_and_a_second_sigterm_changes_nothing() -> None:
    with StopSignals(), pytest.raises(RunInterrupted, match=r"^stopped by SIGTERM$"), StopSignals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
    with StopSignals() as outer:
        with StopSignals() as inner:
            inner.deferred = True
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # while what the inner one guarded is closed
        assert outer.received == "SIGTERM"


def test_second_ctrl_c_stops_at_once() -> None:
    with StopSignals() as signals:
        signals.deferred = True
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt) as stopped:
            os.kill(os.getpid(), signal.SIGINT)
        assert not isinstance(stopped.value, RunInterrupted)
