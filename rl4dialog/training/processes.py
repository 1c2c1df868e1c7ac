"""The processes of a run, and the signals that stop it.

A data-parallel run has several processes of the same script, started by ``accelerate launch`` or ``torchrun``. Each has
a share of the environments, of every minibatch and of the evaluation prompts. The result is the same as with one
process. Only the main process computes metrics, writes files and prints.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from types import FrameType, TracebackType

import torch
import torch.distributed as dist
from accelerate import PartialState

from rl4dialog.core.errors import RunInterrupted

# The other processes wait while the main process computes metrics. If it dies, the launcher ends them.
_LONGEST_WAIT = timedelta(hours=12)
_USE = {"fsdp": "ACCELERATE_USE_FSDP", "deepspeed": "ACCELERATE_USE_DEEPSPEED"}
LAUNCHER_VARIABLES = (
    *("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *_USE.values(),
)


def is_launched() -> bool:
    """Whether a launcher has started several processes."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def sharding() -> str | None:
    """Sharding method from the launcher's config: ``"fsdp"``, ``"deepspeed"`` or ``None``."""
    wanted = [name for name, variable in _USE.items() if os.environ.get(variable, "false").lower() == "true"]
    return wanted[0] if wanted and is_launched() else None


def has_checkpoints() -> bool:
    """Whether the run supports checkpoints. DeepSpeed's sharded optimizer state can only be saved as pickles."""
    return sharding() != "deepspeed"


def join_processes(prepare: Callable[[], None]) -> None:
    """Initialize communication between the processes. Does nothing in a run with one process."""
    if not is_launched():
        return
    if os.environ.get("LOCAL_RANK", "0") == "0":
        prepare()
    PartialState(cpu=not torch.cuda.is_available(), timeout=_LONGEST_WAIT)


def leave_processes() -> None:
    """Shut down the communication started by :func:`join_processes`."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
