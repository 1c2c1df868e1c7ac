"""Reductions over the processes of a data-parallel run. With one process, they return their input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from rl4dialog.core.errors import ModelError, ProcessError, RL4DialogError

T = TypeVar("T")


def n_processes() -> int:
    return dist.get_world_size() if _is_parallel() else 1


def process_index() -> int:
    """Index of this process, from 0."""
    return dist.get_rank() if _is_parallel() else 0


def is_main_process() -> bool:
    """Whether this is the process that evaluates, writes files and prints."""
    return process_index() == 0


def barrier() -> None:
    """Wait until all processes have reached this call."""
    _run(dist.barrier)


def all_reduce(value: Tensor) -> Tensor:
    """Sum of a tensor over the processes. The shape must be the same in all of them."""
    if _is_parallel():
        value = value.clone()
        _run(dist.all_reduce, value)
    return value


def all_reduce_numbers(*values: float) -> list[float]:
    """Sums of numbers over the processes."""
    return all_reduce(torch.tensor(values, dtype=torch.float64, device=_device())).tolist()


def all_reduce_min(value: int) -> int:
    """Minimum of a number over the processes."""
    return -all_reduce_max(-value)


def all_reduce_max(value: int) -> int:
    """Maximum of a number over the processes."""
    found = torch.tensor(value, device=_device())
    _run(dist.all_reduce, found, dist.ReduceOp.MAX)
    return int(found)


def all_reduce_max_numbers(*values: float) -> list[float]:
    """Maximum of each number over the processes; NaN if any is NaN."""
    numbers = torch.tensor(values, dtype=torch.float64, device=_device())
    lost = all_reduce(numbers.isnan().double()) > 0  # the handling of NaN in a reduction depends on the backend
    _run(dist.all_reduce, numbers, dist.ReduceOp.MAX)
    return numbers.masked_fill(lost, torch.nan).tolist()


def mean_and_std(values: np.ndarray | Tensor, unbiased: bool = False) -> tuple[float, float]:
    """Mean and standard deviation over all processes. Shape (N,), where N may differ between processes."""
    numbers = torch.as_tensor(values, dtype=torch.float64).flatten()
    count, sum_ = all_reduce_numbers(len(numbers), float(numbers.sum()))
    mean = sum_ / count
    (squares,) = all_reduce_numbers(float((numbers - mean).square().sum()))
    return mean, float((squares / max(count - unbiased, 1)) ** 0.5)  # 0 for a single number


def all_gather_object(value: Any) -> list[Any]:
    """Gather one object from every process, in order of the processes."""
    found: list[Any] = [value] * n_processes()
    _run(dist.all_gather_object, found, value)
    return found


def in_main_process(call: Callable[[], T]) -> T:
    """What a call returns in the main process, for all of them; an error of the toolkit is raised in all of them."""
    found: T | RL4DialogError | None = None
    if is_main_process():
        try:
            found = call()
        except RL4DialogError as error:
            found = error
    found = all_gather_object(found)[0]
    if isinstance(found, RL4DialogError):
        raise found
    return found  # type: ignore[return-value]


def gathered(own: Tensor) -> Tensor:
    """Numbers of all processes, in order of the processes, of which only this process's own have a gradient.

    The gradients of any function of them sum over the processes to the gradient of one process with all numbers. Shape
    (N, ...), where N may differ between processes.
    """
    counts, index = all_gather_object(len(own)), process_index()
    around = [own.new_zeros((sum(part), *own.shape[1:])) for part in (counts[:index], counts[index + 1 :])]
    placed = torch.cat([around[0], own, around[1]])
    return placed + (all_reduce(placed.detach()) - placed.detach())


def all_reduce_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace each gradient by its sum over the processes. Gradients of a sharded policy are summed already."""
    if not _is_parallel():
        return
    grads = [p.grad for p in parameters if p.grad is not None and not isinstance(p.grad, DTensor)]
    # One message per dtype. Every process has the same parameters in the same order.
    for dtype in dict.fromkeys(grad.dtype for grad in grads):
        same = [grad for grad in grads if grad.dtype == dtype]
        flat = torch.cat([grad.flatten() for grad in same])
        _run(dist.all_reduce, flat)
        for grad, part in zip(same, flat.split([grad.numel() for grad in same]), strict=True):
            grad.copy_(part.view_as(grad))


def reshard(module: nn.Module | None) -> None:
    """Drop what was gathered of a sharded module, whose parameters are then the shards."""
    for part in module.modules() if module is not None else ():
        if isinstance(part, FSDPModule):
            part.reshard()


def full_tensor(value: Tensor) -> Tensor:
    """Gather a tensor that may be sharded over the processes."""
    return value.full_tensor() if isinstance(value, DTensor) else value


@torch.no_grad()
def copy_all(targets: Mapping[str, Tensor], sources: Mapping[str, Tensor]) -> None:
    """Copy tensors into targets of the same names, which may be sharded."""
    for name, target in targets.items():
        source = sources.get(name)
        if source is None or source.shape != target.shape:
            found = "is missing" if source is None else f"has the shape {tuple(source.shape)}"
            raise ModelError(f"the saved weights do not fit the model: {name} {found}, not {tuple(target.shape)}")
        if isinstance(target, DTensor):
            source = distribute_tensor(source.to(target.device), target.device_mesh, target.placements)
        target.copy_(source)


@torch.no_grad()  # else, autograd would hold that weights follow from a broadcast
def broadcast(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors with those of the main process."""
    for tensor in tensors:
        _run(dist.broadcast, tensor, 0)


def _run(operation: Callable[..., Any], *args: Any) -> None:
    """Run an operation of all processes, if there are several."""
    if not _is_parallel():
        return
    try:
        operation(*args)
    except RuntimeError as error:
        lost = f"process {dist.get_rank()} lost another process of this run, whose own error is printed above or below"
        raise ProcessError(f"{lost} ({str(error).splitlines()[0]})") from error


def _is_parallel() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _device() -> torch.device:
    """Device for the messages of this run's backend."""
    on_gpu = _is_parallel() and dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
