"""The domains of a world, their slots, how values are written, and the database of entities."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

from rl4dialog.core.errors import DataError, nearest_hint
from rl4dialog.tasks.dialogue_acts.acts import DONT_CARE

Bound = Literal["at least", "at most"]
REFERENCE = "ref"  # slot of a booking's reference number
CHOICE = "choice"  # slot of the number of entities that satisfy all constraints

_DONT_CARE = frozenset(
    {DONT_CARE, "do n't care", "don't care", "dont care", "do not care", "do nt care", "doesn't matter", "any"}
)
_TIME = re.compile(r"(?<!\d)(\d{1,2}):(\d{2})(?!\d)")


@dataclass(frozen=True)
class Domain:
    """One domain."""

    name: str
    informable: tuple[str, ...]  # slots that a user can constrain
    requestable: tuple[str, ...]  # slots that a user can ask for
    bookable: tuple[str, ...] = ()  # slots that a booking needs, such as ``day``; empty if nothing is booked
    key: str = "name"  # slot that identifies an entity
    # slots whose constraint is a bound on a time, such as ``{"arrive": "at most"}``
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    times: tuple[str, ...] = ()  # other slots whose values are times
    # slots of an offer that can always be made, whatever the constraints, such as the phone number of a taxi; its
    # values are those of some entity
    generated: tuple[str, ...] = ()
    required: tuple[tuple[str, ...], ...] = ()  # what such an offer needs: from each group of slots, one constraint

    @property
    def slots(self) -> tuple[str, ...]:
        """All slots of acts about this domain; some are there twice."""
        own = (*self.informable, *self.bookable, *self.requestable, *self.generated)
        return (*own, self.key, REFERENCE, CHOICE)


class Ontology:
    """The domains of a world, and other spellings of values, in lower case, with the usual one."""

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


Entity = Mapping[str, str]


class Database:
    """Entities by domain, indexed by the values of every informable slot.

    The set of entities with a value is an integer with one bit per entity, so constraints are combined by ``&``.
    Results are remembered. Values of entities are normalized here, those of constraints by the caller.
    """

    def __init__(self, ontology: Ontology, entities: Mapping[str, Sequence[Entity]]) -> None:
        self._entities: dict[str, tuple[Entity, ...]] = {}
        self._indices: dict[str, _Index] = {}
        self._results: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._values: dict[tuple[str, str], frozenset[str]] = {}
        self._named: dict[str, dict[str, tuple[Entity, ...]]] = {}
        for name, domain in ontology.domains.items():
            rows = tuple(
                {slot: ontology.normalized(name, slot, value) for slot, value in entity.items()}
                for entity in entities.get(name, ())
            )
            self._entities[name] = rows
            self._indices[name] = _Index(domain, rows)
            named = self._named[name] = {}
            for row in rows:
                named[row.get(domain.key, "")] = (*named.get(row.get(domain.key, ""), ()), row)

    def entities(self, domain: str) -> tuple[Entity, ...]:
        """All entities of a domain, in the order of their numbers."""
        return self._entities[domain]

    def has(self, domain: str) -> bool:
        """Whether the database has this domain."""
        return domain in self._entities

    def named(self, domain: str, key: str) -> tuple[Entity, ...]:
        """All entities with this value of the domain's key; several trains, for instance, have the same number."""
        return self._named[domain].get(key, ())

    def values(self, domain: str, slot: str) -> frozenset[str]:
        """All values of a slot."""
        key = (domain, slot)
        if key not in self._values:
            self._values[key] = frozenset(entity[slot] for entity in self._entities[domain] if slot in entity)
        return self._values[key]

    def query(self, domain: str, constraints: Mapping[str, str]) -> tuple[int, ...]:
        """Numbers of the entities that satisfy all constraints, in ascending order.

        Constraints with the value ``dontcare`` admit everything. A bound on a time admits entities whose time is not
        before or not after it; one that is not a time admits nothing.
        """
        key = (domain, *constraints.items())
        found = self._results.get(key)
        if found is None:
            found = self._results[key] = tuple(_bits(self._indices[domain].matching(constraints)))
        return found


class _Index:
    """Sets of entities by slot and value, as integers with one bit per entity."""

    def __init__(self, domain: Domain, entities: Sequence[Entity]) -> None:
        self._all = (1 << len(entities)) - 1
        self._bounds = domain.bounds
        self._by_value: dict[str, dict[str, int]] = {}
        for slot in domain.informable:
            if slot not in domain.bounds:
                by_value: dict[str, int] = {}
                for i, entity in enumerate(entities):
                    if slot in entity:
                        by_value[entity[slot]] = by_value.get(entity[slot], 0) | 1 << i
                self._by_value[slot] = by_value
        self._by_time = {slot: _TimeIndex(slot, bound, entities) for slot, bound in domain.bounds.items()}

    def matching(self, constraints: Mapping[str, str]) -> int:
        found = self._all
        for slot, value in constraints.items():
            if value == DONT_CARE:
                continue
            found &= self._by_time[slot].matching(value) if slot in self._bounds else self._by_value[slot].get(value, 0)
        return found


class _TimeIndex:
    """Entities in the order of a time, with the set of all up to each position, or from each position on."""

    def __init__(self, slot: str, bound: Bound, entities: Sequence[Entity]) -> None:
        with_time = ((minutes(entity.get(slot, "")), i) for i, entity in enumerate(entities))
        times = sorted((cast(int, time), i) for time, i in with_time if time is not None)
        self._bound, self._times = bound, [time for time, _ in times]
        order = [i for _, i in times] if bound == "at most" else [i for _, i in reversed(times)]
        self._first_n = [0]
        for i in order:
            self._first_n.append(self._first_n[-1] | 1 << i)

    def matching(self, value: str) -> int:
        limit = minutes(value)
        if limit is None:
            return 0
        if self._bound == "at most":
            return self._first_n[bisect_right(self._times, limit)]
        return self._first_n[len(self._times) - bisect_left(self._times, limit)]


def _bits(number: int) -> Iterator[int]:
    """Positions of the 1 bits, lowest first."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
