"""Data-parallel runs: several processes of the same script, started by ``accelerate launch`` or ``torchrun``.

Each process has a share of the environments, of every minibatch and of the evaluation prompts. The result is the same
as with one process. Only the main process computes metrics, writes files and prints.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState

from rl4dialog.core.errors import ConfigError, ProcessError
from rl4dialog.core.yaml_loader import differing
from rl4dialog.functional.distributed import all_gather_object, is_main_process, n_processes
from rl4dialog.training.interruption import ended_at_once

# The other processes wait while the main process computes metrics. If it dies, the launcher ends them.
_LONGEST_WAIT = timedelta(hours=12)
_USE_FSDP = "ACCELERATE_USE_FSDP"
LAUNCHER_VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", _USE_FSDP)


def is_launched() -> bool:
    """Whether a launcher has started several processes."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_sharded() -> bool:
    """Whether the launcher's config shards policies over the processes, by FSDP."""
    return is_launched() and _is_set(_USE_FSDP)


def refuse_deepspeed() -> None:
    """Refuse a launcher's config for DeepSpeed, whose sharded optimizer state can only be saved as pickles."""
    if _is_set("ACCELERATE_USE_DEEPSPEED"):
        raise ConfigError(
            "the launcher's config selects DeepSpeed, with which a run could not have checkpoints, target_kl or critic "
            "warm-up; select FSDP, as in task_configs/accelerate/fsdp.yml (docs/large_models.md#multiple-processes)"
        )


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "false").lower() == "true"


def join_processes(prepare: Callable[[], None]) -> None:
    """Initialize communication between the processes. Does nothing in a run with one process.

    Raises:
        ProcessError: If they cannot connect.
    """
    if not is_launched():
        return
    refuse_deepspeed()
    if os.environ.get("LOCAL_RANK", "0") == "0":
        prepare()
    # A signal would make torch connect again, for hours, to a process that the same signal may have ended.
    try:
        with ended_at_once():
            PartialState(cpu=not torch.cuda.is_available(), timeout=_LONGEST_WAIT)
    except dist.DistError as error:
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')} (MASTER_ADDR, MASTER_PORT)"
        problem = f"process {os.environ.get('RANK')} cannot connect with the others at {address}"
        raise ProcessError(f"{problem}: {str(error).splitlines()[0]}") from None


def check_agreement(facts: Callable[[], Mapping[str, Any]]) -> None:
    """Refuse to go on if another process of the run has other facts than the first one, in one message."""
    if n_processes() == 1:
        return
    of_first, *others = all_gather_object(facts())
    for process, found in enumerate(others, start=1):
        for key, first, other in differing(of_first, found):
            if not is_main_process():
                sys.exit(2)
            need = "all need the same config, files and package versions"
            raise ConfigError(f"process {process} has {key}: {other!r}, process 0 has {first!r}; {need}")


def leave_processes() -> None:
    """Shut down the communication started by :func:`join_processes`. vLLM does so itself when its engine ends."""
    if dist.is_available() and dist.is_initialized() and "vllm" not in sys.modules:
        dist.destroy_process_group()
