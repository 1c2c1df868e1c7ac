"""The domains of a world, their slots, how values are written, and the database of entities."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rl4dialog.core.errors import DataError, nearest_hint
from rl4dialog.features.dialogue_acts.tasks.acts import BOOKING, BYE, DONT_CARE, GENERAL, INFORM, REQUEST, DialogueAct

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
    # slots of an offer that can always be made, such as a taxi's phone number; its values are those of some entity
    generated: tuple[str, ...] = ()
    required: tuple[tuple[str, ...], ...] = ()  # what such an offer needs: from each group of slots, one constraint

    @property
    def slots(self) -> tuple[str, ...]:
        """All slots of acts about this domain; some are there twice."""
        own = (*self.informable, *self.bookable, *self.requestable, *self.generated)
        return (*own, self.key, REFERENCE, CHOICE)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


class Ontology:
    """The domains of a world, and other spellings of values, in lower case, with the usual one."""

    def __init__(self, domains: Iterable[Domain], synonyms: Mapping[str, str] | None = None) -> None:
        self.domains: Mapping[str, Domain] = {domain.name: domain for domain in domains}
        self.synonyms: Mapping[str, str] = dict(synonyms or {})
        self.only = next(iter(self.domains)) if len(self.domains) == 1 else ""  # name of the only domain

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Ontology:
        """The ontology of a table of the package: fields of `Domain` by name, with lists for tuples, and synonyms."""
        domains = [
            Domain(name, **{key: _as_tuple(each) for key, each in d.items()}) for name, d in table["domains"].items()
        ]
        return cls(domains, table["synonyms"])

    def __contains__(self, name: str) -> bool:
        return name in self.domains

    def __getitem__(self, name: str) -> Domain:
        try:
            return self.domains[name]
        except KeyError:
            known = ", ".join(self.domains)
            raise DataError(f"unknown domain {name!r}{nearest_hint(name, self.domains)} (known: {known})") from None

    def user_acts(self) -> Iterator[DialogueAct]:
        """All delexicalized acts that the simulated user can say."""
        yield DialogueAct(BYE, GENERAL)
        for domain in self.domains.values():
            yield DialogueAct(INFORM, domain.name)
            for slot in (*domain.informable, *domain.bookable):
                yield DialogueAct(INFORM, domain.name, slot, "1")
            for slot in dict.fromkeys((*domain.requestable, domain.key)):
                yield DialogueAct(REQUEST, domain.name, slot)

    def normalized_acts(self, acts: Iterable[DialogueAct], where: str) -> Iterator[DialogueAct]:
        """Check acts of a corpus, and normalize their values."""
        for act in acts:
            if act.domain in (GENERAL, BOOKING):
                yield act
                continue
            if act.domain not in self:
                raise DataError(f"{where}: act {act}: unknown domain (known: {', '.join(self.domains)})")
            known = {*self[act.domain].slots, ""}
            if act.slot not in known:
                raise DataError(f"{where}: act {act}: unknown slot (known: {', '.join(sorted(known - {''}))})")
            yield act._replace(value=self.normalized(act.domain, act.slot, act.value)) if act.value else act

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
    own, limit = (minutes(value), minutes(wanted)) if bound is not None else (None, None)
    if own is None or limit is None:
        return False
    return own <= limit if bound == "at most" else own >= limit


Entity = Mapping[str, str]


class Database:
    """Entities by domain, and what satisfies constraints.

    The set of entities that satisfy one constraint is an integer with one bit per entity, so that constraints are
    combined by ``&``. Sets and results are remembered. Values of entities are normalized here, unlike constraints.
    """

    def __init__(self, ontology: Ontology, entities: Mapping[str, Sequence[Entity]]) -> None:
        self.ontology = ontology
        self._entities: dict[str, tuple[Entity, ...]] = {}
        self._sets: dict[tuple[str, str, str], int] = {}
        self._results: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._values: dict[tuple[str, str], frozenset[str]] = {}
        self._named: dict[tuple[str, str], tuple[Entity, ...]] = {}
        for name, spec in ontology.domains.items():
            given = [entity.items() for entity in entities.get(name, ())]
            rows = tuple({slot: ontology.normalized(name, slot, value) for slot, value in items} for items in given)
            self._entities[name] = rows
            for row in rows:
                key = name, row.get(spec.key, "")
                self._named[key] = (*self._named.get(key, ()), row)

    def entities(self, domain: str) -> tuple[Entity, ...]:
        """All entities of a domain, in the order of their numbers."""
        return self._entities[domain]

    def has(self, domain: str) -> bool:
        return domain in self._entities

    def named(self, domain: str, key: str) -> tuple[Entity, ...]:
        """All entities with this value of the domain's key; several trains, for instance, have the same number."""
        return self._named.get((domain, key), ())

    def values(self, domain: str, slot: str) -> frozenset[str]:
        if (domain, slot) not in self._values:
            found = frozenset(entity[slot] for entity in self._entities[domain] if slot in entity)
            self._values[domain, slot] = found
        return self._values[domain, slot]

    def query(self, domain: str, constraints: Mapping[str, str]) -> tuple[int, ...]:
        """Numbers of the entities that satisfy all constraints, in ascending order.

        Constraints with the value ``dontcare`` admit everything. A bound on a time admits entities whose time is not
        before or not after it; one that is not a time admits nothing.
        """
        key = (domain, *constraints.items())
        if key not in self._results:
            found = (1 << len(self._entities[domain])) - 1
            for slot, wanted in constraints.items():
                found &= self._satisfying(domain, slot, wanted)
            self._results[key] = tuple(i for i, bit in enumerate(bin(found)[:1:-1]) if bit == "1")
        return self._results[key]

    def _satisfying(self, domain: str, slot: str, wanted: str) -> int:
        if wanted == DONT_CARE:
            return -1  # all bits
        key = (domain, slot, wanted)
        if key not in self._sets:
            spec, rows = self.ontology[domain], enumerate(self._entities[domain])
            is_bound = slot not in spec.bounds or minutes(wanted) is not None
            fits = (i for i, row in rows if is_bound and slot in row and satisfies(spec, slot, row[slot], wanted))
            self._sets[key] = sum(1 << i for i in fits)
        return self._sets[key]
