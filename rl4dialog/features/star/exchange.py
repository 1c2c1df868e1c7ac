"""Exchange of names, days, times and numbers in a conversation, so that a small model learns to copy them."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_NAMES = ("Mark", "John", "Alexis", "Angela", "Ben", "Susan", "Alina")
_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_PLACES = (
    *("Hospital", "Airport", "University", "Broadway and Main", "5th and Main", "Craig and Center"),
    "Forbes and Murray",
)
_IS_NAME = re.compile(r"Name|\w+City|Airline|ServiceProvider|CarModel").fullmatch
_NUMBERS = (
    r"(?<![\d:/$])(?P<hour>1[0-2]|[1-9])(?=(?::\d\d)?\s?[ap]\.?m\b)|(?<![\d/])(?P<day>[12]\d|3[01]|[1-9])(?:st|nd|rd|th)\b"
    r"|(?<![\d:/$.])(?<!may )(?<!june )(?P<number>\d{3,}|1[3-9]|[2-9]\d)(?![\d:/%]|st\b|nd\b|rd\b|th\b|\s?[ap]\.?m\b)"
)


class Exchange:
    """Replaces what can be another one of its kind, the same in all texts of a conversation.

    Args:
        schemas: APIs of the conversation. Of the names in their categories, the words are exchanged that not several of
            them have: "Shadyside" in "Shadyside Inn" and in "Shadyside".
        rng: Random numbers, which draw what replaces what.
    """

    def __init__(self, schemas: Iterable[Mapping[str, Any]], rng: random.Random) -> None:
        kinds: list[Sequence[str]] = [_DAYS, _PLACES]
        fixed = set[str]()  # which are names of people, too
        for slot in (each for schema in schemas for each in schema.get("input", ())):
            values = slot.get("Categories", ()) if _IS_NAME(slot["Name"]) else ()
            words = Counter(word for value in values for word in {*value.split()})
            cores = [" ".join(word for word in value.split() if words[word] == 1) for value in values]
            if {*cores} & {*_NAMES}:
                fixed |= {*cores}
            elif all(cores):
                kinds.append(cores)
        kinds.append([name for name in _NAMES if name not in fixed])
        self._other = dict[str, str]()
        for kind in kinds:
            self._other |= {one.lower(): other for one, other in zip(kind, _shuffled(kind, rng), strict=True)}
        self._hours, self._days = _shuffled(range(1, 13), rng), _shuffled(range(1, 32), rng)
        self._digits = str.maketrans("0123456789", "".join(_shuffled("0123456789", rng)))
        phrases = "|".join(map(re.escape, sorted(self._other, key=len, reverse=True)))
        self._pattern = re.compile(rf"\b(?P<phrase>{phrases})\b|{_NUMBERS}", re.IGNORECASE)

    def __call__(self, value: Any) -> Any:
        """The same text, or everything in lists and the values of mappings."""
        if isinstance(value, str):
            return self._pattern.sub(self._replaced, value)
        if isinstance(value, Mapping):
            return {key: self(each) for key, each in value.items()}
        return [self(each) for each in value] if isinstance(value, list | tuple) else value

    def _replaced(self, match: re.Match[str]) -> str:
        if found := match["phrase"]:
            other = self._other[found.lower()]
            return other.lower() if found.islower() else other
        if match["hour"]:
            return str(self._hours[int(match["hour"]) - 1])
        if match["day"]:
            return ordinal(self._days[int(match["day"]) - 1])
        return match["number"].translate(self._digits)


def _shuffled(kind: Sequence[Any], rng: random.Random) -> list[Any]:
    return rng.sample(kind, len(kind))


def ordinal(n: int) -> str:
    """A day of the month in words such as 1st, 2nd, 3rd and 11th."""
    return f"{n}{'th' if 11 <= n <= 13 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"
