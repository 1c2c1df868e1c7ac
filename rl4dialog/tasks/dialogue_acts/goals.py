"""Goals of users: what they look for, ask for and book, in each domain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rl4dialog.core.errors import DataError, shown
from rl4dialog.tasks.dialogue_acts.acts import DONT_CARE
from rl4dialog.tasks.dialogue_acts.database import Database
from rl4dialog.tasks.dialogue_acts.ontology import REFERENCE, Ontology
from rl4dialog.tasks.dialogue_acts.templates import Templates

VALUED_FIELDS = ("info", "fail_info", "book", "fail_book")
"""Fields of `DomainGoal` that map slots to values."""


@dataclass(frozen=True)
class DomainGoal:
    """What a user wants in one domain.

    Attributes:
        info: Constraints on the entity, by slot.
        fail_info: Constraints that the user names first, where they differ from `info`; the user replaces them by
            `info` after "no offer".
        requests: Slots of the entity that the user wants to know.
        book: Values of the booking, by slot; empty if nothing is booked.
        fail_book: Values that the user asks for first and that are not available, where they differ from `book`.
    """

    info: Mapping[str, str] = field(default_factory=dict)
    fail_info: Mapping[str, str] = field(default_factory=dict)
    requests: tuple[str, ...] = ()
    book: Mapping[str, str] = field(default_factory=dict)
    fail_book: Mapping[str, str] = field(default_factory=dict)

    @property
    def first_info(self) -> dict[str, str]:
        """The constraints before "no offer"."""
        return {**self.info, **self.fail_info}

    @property
    def first_book(self) -> dict[str, str]:
        """The values of the booking before "no booking"."""
        return {**self.book, **self.fail_book}


@dataclass(frozen=True)
class Goal:
    """A user's goal.

    Attributes:
        id: Identifier.
        domains: Goal of each domain, in the order in which the user comes to them.
        text: The goal in words, for people; empty if there are none.
    """

    id: str
    domains: Mapping[str, DomainGoal]
    text: str = ""

    @property
    def key(self) -> str:
        """The same for all goals with the same domains, slots and values, in any order."""
        return repr(
            sorted(
                (name, *(sorted(getattr(wanted, field).items()) for field in VALUED_FIELDS), sorted(wanted.requests))
                for name, wanted in self.domains.items()
            )
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types."""
        return asdict(self)


def goal_text(domains: Mapping[str, DomainGoal], templates: Templates) -> str:
    """A goal in words, for people."""
    sentences = []
    for name, wanted in domains.items():
        noun = templates.noun(name)
        sentences.append(f"You are looking for a {noun} {templates.items(name, wanted.first_info)}".rstrip() + ".")
        if wanted.fail_info:
            second = {slot: wanted.info.get(slot, DONT_CARE) for slot in wanted.fail_info}
            sentences.append(f"If there is none, look for one {templates.items(name, second)} instead.")
        if wanted.requests:
            nouns = " and the ".join(templates.noun(name, slot) for slot in wanted.requests)
            sentences.append(f"Ask about the {nouns}.")
        if wanted.book:
            sentences.append(f"Book it {templates.items(name, wanted.first_book)}.")
        if wanted.fail_book:
            second = {slot: wanted.book[slot] for slot in wanted.fail_book}
            sentences.append(f"If that is not possible, book it {templates.items(name, second)} instead.")
    return " ".join(sentences)


def goal_of(record: Any, ontology: Ontology, where: str) -> Goal:
    """Read a goal from JSON, as `Goal.to_json` writes it. Values are normalized.

    Args:
        record: The JSON.
        ontology: The domains.
        where: What contains it, for the error message.
    """
    if not isinstance(record, Mapping) or not isinstance(record.get("domains"), Mapping) or not record["domains"]:
        raise DataError(f"{where}: a goal must be an object with 'domains', not {shown(record)}")
    domains = {}
    for name, given in record["domains"].items():
        if name not in ontology or not isinstance(given, Mapping):
            known = ", ".join(ontology.domains)
            raise DataError(f"{where}: domain {name!r} of the goal is unknown or not an object (known: {known})")
        domains[name] = _domain_goal(name, given, ontology, f"{where}: goal of domain {name!r}")
    return Goal(str(record.get("id", "")), domains, str(record.get("text", "")))


def _domain_goal(name: str, given: Mapping[str, Any], ontology: Ontology, where: str) -> DomainGoal:
    spec = ontology[name]
    slots = {"info": spec.informable, "fail_info": spec.informable, "book": spec.bookable, "fail_book": spec.bookable}
    unknown = set(given) - {*slots, "requests"}
    if unknown:
        raise DataError(f"{where}: unknown key {min(unknown)!r}; keys are requests, {', '.join(slots)}")
    values: dict[str, dict[str, str]] = {}
    for key, known in slots.items():
        values[key] = {}
        if not isinstance(given.get(key, {}), Mapping):
            raise DataError(f"{where}: {key} must be an object with values by slot, not {shown(given[key])}")
        for slot, value in given.get(key, {}).items():
            if slot not in known or not isinstance(value, str):
                raise DataError(
                    f"{where}: {key}.{slot} must be a text, and its slot one of {', '.join(known) or 'none'}; got "
                    f"{shown(value)}"
                )
            values[key][slot] = ontology.normalized(name, slot, value)
    if not isinstance(given.get("requests", ()), list | tuple):
        raise DataError(f"{where}: requests must be a list of slots, not {shown(given['requests'])}")
    for slot in given.get("requests", ()):
        if slot not in spec.requestable:
            raise DataError(f"{where}: slot {slot!r} cannot be requested (slots: {', '.join(spec.requestable)})")
    return DomainGoal(requests=tuple(given.get("requests", ())), **values)


def problems(goal: Goal, ontology: Ontology, database: Database) -> list[str]:
    """Why a goal cannot be reached; empty if it can.

    A goal can be reached if in each domain an entity satisfies the final constraints and has all requested slots.
    """
    found = []
    for name, wanted in goal.domains.items():
        spec = ontology[name]
        if spec.generated:
            continue
        matches = database.query(name, wanted.info)
        if not matches:
            found.append(f"{name}: no entity satisfies {dict(wanted.info)}")
            continue
        entities = [database.entities(name)[i] for i in matches]
        for slot in wanted.requests:
            of_booking = slot in spec.bookable or (slot == REFERENCE and wanted.book)
            if not of_booking and not any(entity.get(slot) for entity in entities):
                found.append(f"{name}: no entity that satisfies {dict(wanted.info)} has a {slot}")
    return found
