"""A console command in a process of its own, which begins with nothing that an earlier run has left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType


def run_command(arguments: Sequence[str], folder: Path | None = None, environment: Mapping[str, str] = {}) -> int:
    """Run ``rl4dialog`` with arguments, on this console.

    Ctrl-C reaches the process as it reaches this one, and SIGTERM is passed on to it. It gets the time to save what it
    wants to save; then this process ends too.

    Args:
        arguments: The name of the command and what follows it.
        folder: Where it runs; by default here.
        environment: Variables beside those of this process.

    Returns:
        Its exit code.

    Raises:
        SystemExit: If this process was told to end; with the exit code of the other.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "rl4dialog.cli", *arguments], cwd=folder, env={**os.environ, **environment}
    )

    def end(number: int, frame: FrameType | None) -> None:
        process.terminate()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        return process.wait()
    except KeyboardInterrupt:
        # A second Ctrl-C ends this wait, and the process below.
        raise SystemExit(process.wait() or 130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        if process.poll() is None:
            process.kill()
            process.wait()
