"""Sums over the processes of a data-parallel run. In a run of one process, all of it changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from rl4dialog.core.errors import ProcessError


def n_processes() -> int:
    """Processes of the run."""
    return dist.get_world_size() if _is_parallel() else 1


def process_index() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if _is_parallel() else 0


def is_main_process() -> bool:
    """Whether this is the process that measures, writes and speaks."""
    return process_index() == 0


def barrier() -> None:
    """Return when every process has come here."""
    if _is_parallel():
        with _talking():
            dist.barrier()


def all_reduce(value: Tensor) -> Tensor:
    """Sum of a tensor over the processes, which must all have it in the same shape."""
    if _is_parallel():
        value = value.clone()
        with _talking():
            dist.all_reduce(value)
    return value


def all_reduce_numbers(*values: float) -> list[float]:
    """Sums of numbers over the processes."""
    found: list[float] = all_reduce(torch.tensor(values, dtype=torch.float64, device=_device())).tolist()
    return found


def all_reduce_min(value: int) -> int:
    """The smallest of the processes' numbers."""
    return -all_reduce_max(-value)


def all_reduce_max(value: int) -> int:
    """The largest of the processes' numbers."""
    if not _is_parallel():
        return value
    found = torch.tensor(value, device=_device())
    with _talking():
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)


def all_reduce_max_numbers(*values: float) -> list[float]:
    """The largest of each number over the processes; NaN where one has NaN."""
    numbers = torch.tensor(values, dtype=torch.float64, device=_device())
    if _is_parallel():
        # What a reduction makes of NaN depends on the backend.
        lost = all_reduce(numbers.isnan().double()) > 0
        with _talking():
            dist.all_reduce(numbers, dist.ReduceOp.MAX)
        numbers[lost] = torch.nan
    found: list[float] = numbers.tolist()
    return found


def mean_and_std(values: np.ndarray | Tensor, unbiased: bool = False) -> tuple[float, float]:
    """Mean and standard deviation of the numbers of all processes together. Shape (N,), N of any size in each."""
    numbers = torch.as_tensor(values, dtype=torch.float64).flatten()
    count, sum_ = all_reduce_numbers(len(numbers), float(numbers.sum()))
    mean = sum_ / count
    (squares,) = all_reduce_numbers(float((numbers - mean).square().sum()))
    return mean, float((squares / (count - unbiased)) ** 0.5)


def all_gather_object(value: Any) -> list[Any]:
    """An object of every process, in their order."""
    if not _is_parallel():
        return [value]
    found: list[Any] = [None] * n_processes()
    with _talking():
        dist.all_gather_object(found, value)
    return found


def all_reduce_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace each gradient by its sum over the processes; those of a sharded policy are sums already."""
    if not _is_parallel():
        return
    grads = [p.grad for p in parameters if p.grad is not None and not isinstance(p.grad, DTensor)]
    # One message for all of one type; every process has the same parameters in the same order.
    for dtype in dict.fromkeys(grad.dtype for grad in grads):
        same = [grad for grad in grads if grad.dtype == dtype]
        flat = torch.cat([grad.flatten() for grad in same])
        with _talking():
            dist.all_reduce(flat)
        for grad, part in zip(same, flat.split([grad.numel() for grad in same]), strict=True):
            grad.copy_(part.view_as(grad))


def full_tensor(value: Tensor) -> Tensor:
    """A tensor of which each process may have a part, put together."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def broadcast(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors by those of the main process."""
    if _is_parallel():
        with _talking():
            for tensor in tensors:
                dist.broadcast(tensor, 0)


@contextmanager
def _talking() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise ProcessError(
            f"process {dist.get_rank()} lost another process of this run, whose own error stands above or below "
            f"({str(error).splitlines()[0]})"
        ) from error


def _is_parallel() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _device() -> torch.device:
    """Where messages of this run's backend are sent from."""
    on_gpu = _is_parallel() and dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
