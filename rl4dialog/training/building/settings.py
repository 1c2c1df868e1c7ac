"""Settings of a run that conditions read, and rows of a condition and a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any


class Settings:
    """What conditions read: settings by the last part of their key, with defaults, and what follows from them.

    Runs do not have all of them: a condition that reads one that is not set is about other runs.
    """

    def __init__(self, values: Mapping[str, Any] = MappingProxyType({})) -> None:
        vars(self).update({name: value for name, value in values.items() if value is not None})

    def over(self, other: Mapping[str, Any]) -> Settings:
        """With other values where it has none."""
        return Settings({**other, **vars(self)})

    def __getattr__(self, name: str) -> Any:
        raise _Unset(name)


class _Unset(AttributeError):
    """A condition reads what a run does not have."""


Row = tuple[Callable[[Settings], object], str]


def rows_met(rows: Iterable[Row], settings: Settings) -> Iterator[str]:
    """Messages, filled in, of the rows whose condition holds."""
    for holds, message in rows:
        with suppress(_Unset):
            if holds(settings):
                yield message.format(**vars(settings))
