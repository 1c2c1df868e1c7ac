"""Database of a world: which entities satisfy which constraints."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from rl4dialog.tasks.dialogue_acts.acts import DONT_CARE
from rl4dialog.tasks.dialogue_acts.ontology import Bound, Domain, Ontology, minutes

Entity = Mapping[str, str]


class Database:
    """Entities by domain, indexed by the values of every informable slot.

    The set of entities with a value is an integer with one bit per entity, so constraints are combined by ``&``.
    Results are remembered.

    Args:
        ontology: The domains.
        entities: Entities by domain. Values are normalized here.
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

        Args:
            domain: The domain.
            constraints: Normalized value of each constrained slot.
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
