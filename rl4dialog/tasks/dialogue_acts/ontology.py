"""Ontology: the domains of a world, their slots, and how values are written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rl4dialog.core.errors import DataError, nearest_hint
from rl4dialog.tasks.dialogue_acts.acts import DONT_CARE

Bound = Literal["at least", "at most"]
REFERENCE = "ref"
"""Slot of a booking's reference number."""
CHOICE = "choice"
"""Slot of the number of entities that satisfy all constraints."""

_DONT_CARE = frozenset(
    {DONT_CARE, "do n't care", "don't care", "dont care", "do not care", "do nt care", "doesn't matter", "any"}
)
_TIME = re.compile(r"(?<!\d)(\d{1,2}):(\d{2})(?!\d)")


@dataclass(frozen=True)
class Domain:
    """One domain.

    Attributes:
        name: Its name.
        informable: Slots that a user can constrain.
        requestable: Slots that a user can ask for.
        bookable: Slots that a booking needs, such as ``day``; empty if nothing is booked.
        key: Slot that identifies an entity.
        bounds: Slots whose constraint is a bound on a time, such as ``{"arrive": "at most"}``.
        times: Other slots whose values are times.
        generated: Slots of an offer that can always be made, whatever the constraints, such as the phone number of a
            taxi. Its values are those of some entity.
        required: What such an offer needs: from each group of slots, one constraint.
    """

    name: str
    informable: tuple[str, ...]
    requestable: tuple[str, ...]
    bookable: tuple[str, ...] = ()
    key: str = "name"
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    times: tuple[str, ...] = ()
    generated: tuple[str, ...] = ()
    required: tuple[tuple[str, ...], ...] = ()

    @property
    def slots(self) -> tuple[str, ...]:
        """All slots of acts about this domain; some are there twice."""
        own = (*self.informable, *self.bookable, *self.requestable, *self.generated)
        return (*own, self.key, REFERENCE, CHOICE)


class Ontology:
    """The domains of a world.

    Args:
        domains: The domains.
        synonyms: Other spellings of values, in lower case, with the usual one.

    Attributes:
        synonyms: The same.
    """

    def __init__(self, domains: Iterable[Domain], synonyms: Mapping[str, str] | None = None) -> None:
        self.domains: Mapping[str, Domain] = {domain.name: domain for domain in domains}
        self.synonyms: Mapping[str, str] = dict(synonyms or {})

    def __contains__(self, name: str) -> bool:
        return name in self.domains

    def __getitem__(self, name: str) -> Domain:
        """The domain of a name."""
        try:
            return self.domains[name]
        except KeyError:
            known = ", ".join(self.domains)
            raise DataError(f"unknown domain {name!r}{nearest_hint(name, self.domains)} (known: {known})") from None

    def normalized(self, domain: str, slot: str, value: str) -> str:
        """The one spelling of a value: lower case, single spaces, times as ``09:05``, ``dontcare``."""
        text = " ".join(value.lower().split())
        text = self.synonyms.get(text, text)
        if text in _DONT_CARE:
            return DONT_CARE
        spec = self[domain]
        if slot in spec.bounds or slot in spec.times:
            time = _TIME.search(text)
            return f"{int(time[1]):02d}:{time[2]}" if time is not None else text
        return text


def minutes(time: str) -> int | None:
    """Minutes after midnight of a time such as ``09:05``; ``None`` if the text is not a time."""
    found = _TIME.fullmatch(time)
    return 60 * int(found[1]) + int(found[2]) if found is not None else None


def satisfies(spec: Domain, slot: str, value: str, wanted: str) -> bool:
    """Whether a value of an entity satisfies a constraint. Both are normalized."""
    if wanted == DONT_CARE or value == wanted:
        return True
    bound = spec.bounds.get(slot)
    times = (minutes(value), minutes(wanted)) if bound is not None else (None, None)
    if times[0] is None or times[1] is None:
        return False
    return times[0] <= times[1] if bound == "at most" else times[0] >= times[1]
