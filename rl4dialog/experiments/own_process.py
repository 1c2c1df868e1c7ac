"""Runs a console command in a separate process, unaffected by the state of this one."""

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

    Ctrl-C reaches both processes, and SIGTERM is forwarded to the child. This process waits for the child to save its
    state, and then exits too.

    Args:
        arguments: Name of the command and its arguments.
        folder: Working directory; by default the current one.
        environment: Environment variables to add.

    Returns:
        The exit code.

    Raises:
        SystemExit: If this process was interrupted; with the child's exit code.
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
        # A second Ctrl-C ends this wait and kills the child below.
        raise SystemExit(process.wait() or 130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        if process.poll() is None:
            process.kill()
            process.wait()
