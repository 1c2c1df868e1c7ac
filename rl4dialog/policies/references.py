"""References of the KL penalty that follow the trained policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rl4dialog.core.errors import ConfigError
from rl4dialog.functional.distributed import reshard


class WeightCopy(nn.Module):
    """Weights of trained parameters at some time, or another model's (``own``), with which a model runs `in_place`.

    If the module that has them is sharded, it is given as ``root``.
    """

    def __init__(
        self,
        trained: Iterable[tuple[str, nn.Parameter]],
        own: Mapping[str, nn.Parameter] | None = None,
        root: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self._reshard = partial(reshard, root)  # no attribute, since the root may contain this
        self._trained = dict(trained)
        if own is None:
            copies = [nn.Parameter(each.detach().clone(), requires_grad=False) for each in self._trained.values()]
            self._copies = nn.ParameterList(copies)
            own = dict(zip(self._trained, copies, strict=True))
        self._own = {name: own[name] for name in self._trained}

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context in which the trained parameters hold these weights. Not for passes with gradients."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        self._reshard()
        for name, own in self._own.items():
            trained = self._trained[name]
            if isinstance(trained, DTensor):  # which must keep its memory: layers are gathered from there
                here, there = trained.to_local(), own.to_local()  # type: ignore[attr-defined]
                kept = here.clone()
                here.copy_(there)
                there.copy_(kept)
            else:
                trained.data, own.data = own.data, trained.data

    @torch.no_grad()
    def pull(self, share: float) -> None:
        """Move the trained parameters by a share of the way to these weights; all the way with 1."""
        self._reshard()
        for name, own in self._own.items():
            self._trained[name].lerp_(own, share)  # type: ignore[arg-type]

    def tensors(self) -> dict[str, Tensor]:
        """Weights by name, for checkpoints."""
        return dict(self._own)


Reference = Literal["initial", "ema", "reset", "none"]


class MovingReference(WeightCopy):
    """Reference weights that follow the trained ones (TR-DPO; Gorbatovski et al. 2024, arXiv 2404.09656).

    With ``reference: ema``, each iteration keeps the share ``decay`` of the old reference; with ``reset``, the policy
    is copied ``every`` so many iterations. Weights are swapped in (`in_place`), or those of a reference model
    (``own``).
    """

    def __init__(
        self,
        trained: Iterable[tuple[str, nn.Parameter]],
        decay: float | None,
        every: int | None,
        own: Mapping[str, nn.Parameter] | None = None,
        root: nn.Module | None = None,
    ) -> None:
        super().__init__(trained, own, root)
        self._decay, self._every = decay, every

    @torch.no_grad()
    def update(self, iteration: int) -> None:
        """Move towards the trained weights after an iteration: own <- decay * own + (1 - decay) * trained."""
        if self._every is not None and iteration % self._every:
            return
        self._reshard()
        step = 1.0 if self._decay is None else 1.0 - self._decay
        for name, own in self._own.items():
            own.lerp_(self._trained[name].to(own.device), step)


def check_reference(args: Mapping[str, Any]) -> None:
    """Check the arguments of a policy that concern its reference."""
    kind = args.get("reference", "initial")
    for of_kind, name, example in (("ema", "reference_decay", "0.99"), ("reset", "reference_every", "20")):
        if kind == of_kind and args.get(name) is None:
            raise ConfigError(f"alg.policy.args.reference: {kind} needs {name}, such as {example}")
        if kind != of_kind and args.get(name) is not None:
            raise ConfigError(f"alg.policy.args.{name} has no effect without reference: {of_kind}")
