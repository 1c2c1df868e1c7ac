"""Weights that change over the iterations, counted from 1."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rl4dialog.core.errors import nearest_hint
from rl4dialog.core.types import is_number, is_whole_number

Weight = float | Callable[[int], float]

_KEYS: dict[str, tuple[str, ...]] = {
    "constant": ("value",),
    "linear": ("start", "end", "n_iters"),
    "piecewise": ("values",),
}


@dataclass(frozen=True)
class Linear:
    """Linear from ``start`` in the first iteration to ``end`` in iteration ``n_iters``, constant after that."""

    start: float
    end: float
    n_iters: int

    def __call__(self, iteration: int) -> float:
        share = min((iteration - 1) / (self.n_iters - 1), 1.0)
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True)
class Piecewise:
    """Each of ``values`` from the corresponding iteration in ``begins`` on."""

    begins: tuple[int, ...]
    values: tuple[float, ...]

    def __call__(self, iteration: int) -> float:
        return self.values[bisect.bisect_right(self.begins, iteration) - 1]


@dataclass(frozen=True)
class Product:
    """The product of two changing weights."""

    first: Callable[[int], float]
    second: Callable[[int], float]

    def __call__(self, iteration: int) -> float:
        return self.first(iteration) * self.second(iteration)


def multiply(first: Weight, second: Weight) -> Weight:
    """Multiply two weights, each constant or changing."""
    if not callable(first) and not callable(second):
        return first * second
    return Product(_changing(first), _changing(second))


def parse_weight(spec: Any) -> Weight:
    """Parse a weight from YAML.

    Args:
        spec: A number, or a block ``{schedule: constant, value: x}``, ``{schedule: linear, start: x, end: y,
            n_iters: n}`` or ``{schedule: piecewise, values: [[1, x], [20, y]]}`` (pairs of first iteration and value).

    Raises:
        ValueError: If the weight is invalid.
    """
    if is_number(spec):
        return float(spec)
    if not isinstance(spec, Mapping):
        raise ValueError(f"must be a number or a block with a schedule, not {spec!r}")
    kind = spec.get("schedule")
    if kind not in _KEYS:
        raise ValueError(
            f"has an unknown schedule {kind!r}{nearest_hint(str(kind), _KEYS)} (known: {', '.join(_KEYS)})"
        )
    if set(spec) != {"schedule", *_KEYS[kind]}:
        raise ValueError(f"is {dict(spec)!r}, but a {kind} schedule has exactly the keys {', '.join(_KEYS[kind])}")
    if kind == "constant":
        return _number(spec["value"])
    if kind == "linear":
        n_iters = spec["n_iters"]
        if not is_whole_number(n_iters, at_least=2):
            raise ValueError(f"needs an n_iters of at least 2 (the last iteration of the schedule), not {n_iters!r}")
        return Linear(_number(spec["start"]), _number(spec["end"]), n_iters)
    return _piecewise(spec["values"])


def _piecewise(values: Any) -> Piecewise:
    is_list = isinstance(values, list) and values and all(isinstance(v, (list, tuple)) and len(v) == 2 for v in values)
    begins = [begin for begin, _ in values] if is_list else []
    if not begins or not all(isinstance(begin, int) for begin in begins) or begins != sorted({1, *begins}):
        raise ValueError(
            f"needs values such as [[1, 1.0], [20, 0.5]], pairs of first iteration and value, starting with iteration "
            f"1, not {values!r}"
        )
    return Piecewise(tuple(begins), tuple(_number(value) for _, value in values))


def _changing(weight: Weight) -> Callable[[int], float]:
    return weight if callable(weight) else Piecewise((1,), (weight,))


def _number(value: Any) -> float:
    if not is_number(value):
        raise ValueError(f"must contain numbers, not {value!r}")
    return float(value)
