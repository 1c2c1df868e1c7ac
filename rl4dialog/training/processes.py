"""Data-parallel runs: several processes of the same script, started by ``accelerate launch`` or ``torchrun``.

Each process has a share of the environments, of every minibatch and of the evaluation prompts. The result is the same
as with one process. Only the main process computes metrics, writes files and prints.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from accelerate import PartialState

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
    """Shut down the communication started by :func:`join_processes`. vLLM does so itself when its engine ends."""
    if dist.is_available() and dist.is_initialized() and "vllm" not in sys.modules:
        dist.destroy_process_group()
