"""Settings of a run that conditions read, and rows of a condition and a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Self, TypeVar


class Settings:
    """What conditions read: settings by the last part of their key, with defaults, and what follows from them.

    Runs do not have all of them: a condition that reads one that is not set is about other runs.
    """

    def __init__(self, values: Mapping[str, Any] = MappingProxyType({})) -> None:
        vars(self).update({name: value for name, value in values.items() if value is not None})

    def over(self, other: Mapping[str, Any]) -> Self:
        """Of the same class, with other values where it has none."""
        return type(self)({**other, **vars(self)})

    def __getattr__(self, name: str) -> Any:
        raise _Unset(name)


class _Unset(AttributeError):
    """A condition reads what a run does not have."""


S = TypeVar("S", bound=Settings)
Row = tuple[Callable[[S], object], str]


def rows_met(rows: Iterable[Row[S]], settings: S) -> Iterator[str]:
    """Messages, filled in, of the rows whose condition holds."""
    for holds, message in rows:
        with suppress(_Unset):
            if holds(settings):
                yield message.format(**vars(settings))
