"""Copies of trained weights, which take their place for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn


class WeightCopy(nn.Module):
    """Weights of trained parameters at some time. A model runs with them while they are :meth:`in_place`.

    Args:
        trained: Trained parameters by name.
        own: Parameters of another model by the same names, which hold the weights; by default copies are made.
    """

    def __init__(
        self, trained: Iterable[tuple[str, nn.Parameter]], own: Mapping[str, nn.Parameter] | None = None
    ) -> None:
        super().__init__()
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

    def _swap(self) -> None:
        for name, own in self._own.items():
            self._trained[name].data, own.data = own.data, self._trained[name].data

    def tensors(self) -> dict[str, Tensor]:
        """Weights by name, for checkpoints."""
        return dict(self._own)
