"""A compact form of similar values for sending them to another process, such as the infos of a step.

Pickling an array takes longer than pickling all texts and numbers of an info. Here, the arrays of all environments
under one key are one array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Packed = tuple[Any, ...]


def pack(values: Sequence[Any]) -> Packed:
    """Join the arrays of values, also those in tuples and dicts; all else stays as it is."""
    types = set(map(type, values))
    if types == {dict}:
        columns: dict[Any, tuple[list[int], list[Any]]] = {}
        for row, value in enumerate(values):
            for key, item in value.items():
                rows, items = columns.setdefault(key, ([], []))
                rows.append(row)
                items.append(item)
        return _dicts, len(values), {key: (rows, pack(items)) for key, (rows, items) in columns.items()}
    if types == {tuple} and len(set(map(len, values))) == 1:
        return _tuples, len(values), [pack(items) for items in zip(*values, strict=True)]
    if types == {np.ndarray} and values[0].ndim > 0 and len({(a.ndim, a.dtype, a.shape[1:]) for a in values}) == 1:
        return _arrays, np.concatenate(values), list(map(len, values))
    return list, values


def unpack(packed: Packed) -> list[Any]:
    """Return the values of :func:`pack`."""
    restore, *arguments = packed
    return restore(*arguments)  # type: ignore[no-any-return]


def _dicts(n: int, columns: dict[Any, tuple[list[int], Packed]]) -> list[dict[Any, Any]]:
    values: list[dict[Any, Any]] = [{} for _ in range(n)]
    for key, (rows, items) in columns.items():
        for row, item in zip(rows, unpack(items), strict=True):
            values[row][key] = item
    return values


def _tuples(n: int, columns: list[Packed]) -> list[tuple[Any, ...]]:
    return list(zip(*map(unpack, columns), strict=True)) if columns else [()] * n


def _arrays(joined: np.ndarray, lengths: list[int]) -> list[np.ndarray]:
    ends = np.cumsum(lengths).tolist()
    return [joined[end - length : end] for length, end in zip(lengths, ends, strict=True)]
