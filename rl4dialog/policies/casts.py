"""Narrow copies of weights for autocast, all of a model made at once instead of each by each layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

Place = tuple[nn.Module, str]  # a module and the name of one of its parameters


def wide_places(model: nn.Module, dtype: torch.dtype) -> list[Place]:
    """Weights and biases that autocast would cast to a narrower type in each pass."""
    return _places((each for each in model.modules() if isinstance(each, nn.Linear | Conv1D)), dtype)


def _places(modules: Iterable[nn.Module], dtype: torch.dtype) -> list[Place]:
    """Parameters of another type."""
    named = ((each, name, tensor) for each in modules for name, tensor in each._parameters.items())
    return [(each, name) for each, name, tensor in named if tensor is not None and tensor.dtype != dtype]


def tensors_at(places: Sequence[Place]) -> list[Tensor]:
    """The parameters at these places."""
    return [module._parameters[name] for module, name in places]  # type: ignore[misc]


@contextmanager
def in_place(places: Sequence[Place], tensors: Sequence[Tensor]) -> Iterator[None]:
    """Let modules use other tensors than their parameters."""
    own = tensors_at(places)
    _put(places, tensors)
    try:
        yield
    finally:
        _put(places, own)


def _put(places: Sequence[Place], tensors: Sequence[Tensor]) -> None:
    for (module, name), tensor in zip(places, tensors, strict=True):
        module._parameters[name] = tensor  # type: ignore[assignment]


@contextmanager
def cast_at_once(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Let a model use casts of its weights, with the results and gradients that autocast's casts would give."""
    # Norms are computed in float32, to which autocast casts their weights if these are narrow.
    norms = [each for each in model.modules() if isinstance(each, nn.LayerNorm)]
    found: list[tuple[Place, Tensor]] = []
    for places, wanted in ((wide_places(model, dtype), dtype), (_places(norms, torch.float32), torch.float32)):
        if places:
            found += zip(places, _Casts.apply(wanted, *tensors_at(places)), strict=True)
    with in_place([place for place, _ in found], [tensor for _, tensor in found]):
        yield


class _Casts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtype = tensors[0].dtype
        return _copies(tensors, dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        found = iter(_copies([grad for grad in grads if grad is not None], ctx.dtype))
        return (None, *(None if grad is None else next(found) for grad in grads))


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    copies = tuple(torch.empty_like(tensor, dtype=dtype) for tensor in tensors)
    torch._foreach_copy_(copies, tuple(tensors))
    return copies
