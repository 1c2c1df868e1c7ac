"""Tables of rules about settings: rows of a condition and a message."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

Row = tuple[Callable[..., Any], str]


def rows_met(rows: Iterable[Row], values: Mapping[str, Any]) -> Iterator[str]:
    """Messages, with values filled in, of the rows whose conditions hold.

    The parameters of a condition name the values that it reads. It does not hold if one is missing or ``None``.
    """
    known = {name: value for name, value in values.items() if value is not None}
    for holds, message in rows:
        names = inspect.signature(holds).parameters
        if names.keys() <= known.keys() and holds(*(known[name] for name in names)):
            yield message.format(**known)
