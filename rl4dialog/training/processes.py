"""Data-parallel runs: several processes that ``accelerate launch`` or ``torchrun`` has started on the same script.

Each has a share of the environments, of every minibatch and of the prompts of an evaluation; together they do what one
process would do. The main process alone measures, writes and speaks.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from accelerate import PartialState

# The others wait while the main process computes metrics; if it dies, the launcher ends them.
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
    """What spreads the policy over the processes, by the launcher's config: ``"fsdp"``, ``"deepspeed"`` or nothing."""
    wanted = [name for name, variable in _USE.items() if os.environ.get(variable, "false").lower() == "true"]
    return wanted[0] if wanted and is_launched() else None


def has_checkpoints() -> bool:
    """Whether a run can be saved: DeepSpeed's optimizer is in parts that only its own pickles hold together."""
    return sharding() != "deepspeed"


def join_processes(prepare: Callable[[], None]) -> None:
    """Let the processes of a launched run know each other; does nothing in a run of one process.

    Args:
        prepare: Called first, in one process of each machine: what it leaves in the cache is found there by the others.
    """
    if not is_launched():
        return
    if os.environ.get("LOCAL_RANK", "0") == "0":
        prepare()
    PartialState(cpu=not torch.cuda.is_available(), timeout=_LONGEST_WAIT)


def leave_processes() -> None:
    """End what :func:`join_processes` began."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
