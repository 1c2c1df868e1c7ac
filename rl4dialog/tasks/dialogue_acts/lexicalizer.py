"""From delexicalized acts to acts with values: which entity the agent speaks of, and the booking desk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rl4dialog.tasks.dialogue_acts.acts import (
    BOOKING,
    BOOKS,
    DONT_CARE,
    NAMING,
    NO_BOOK,
    NO_OFFER,
    DialogueAct,
)
from rl4dialog.tasks.dialogue_acts.belief import BeliefState, DomainBelief
from rl4dialog.tasks.dialogue_acts.database import Database
from rl4dialog.tasks.dialogue_acts.goals import Goal
from rl4dialog.tasks.dialogue_acts.ontology import CHOICE, REFERENCE, Domain, Ontology


class Booking(NamedTuple):
    """A booking that was made, or an offer that was made up from the user's constraints, such as a taxi.

    Attributes:
        domain: The domain.
        entity: Key of the entity.
        values: What was booked, by slot; of an offer, the constraints.
        reference: The reference number; empty for an offer.
    """

    domain: str
    entity: str
    values: Mapping[str, str]
    reference: str


@dataclass
class Said:
    """What the agent says.

    Attributes:
        acts: Acts with values, as the user hears them.
        values: Value of each delexicalized act that was said with one.
        bookings: Bookings that were made by saying it.
        n_unsayable: Number of chosen acts that have no value and are therefore not said.
    """

    acts: list[DialogueAct] = field(default_factory=list)
    values: dict[DialogueAct, str] = field(default_factory=dict)
    bookings: list[Booking] = field(default_factory=list)
    n_unsayable: int = 0


class Lexicalizer:
    """Fills delexicalized acts with values.

    - Value ``"1"`` speaks of the entity that was offered last, if it still satisfies all constraints, and otherwise of
      the first entity that does; ``"2"`` speaks of the next one.
    - ``booking`` as a domain means the domain that was talked about last.
    - A domain with generated slots, such as a taxi, always has an offer once the required constraints are known.
    - Acts ``book`` and ``offerbooked`` make a booking with the values that the agent believes. The user hears all of
      these values and the reference number. If the values are not available, the user hears ``nobook`` instead.
    - An act without a value is not said: the third of two entities, the phone number of an entity that has none, a
      booking whose day is unknown.

    Args:
        ontology: The domains.
        database: Their entities.
    """

    def __init__(self, ontology: Ontology, database: Database) -> None:
        self._ontology, self._database = ontology, database

    def say(self, acts: Iterable[DialogueAct], belief: BeliefState, goal: Goal | None = None) -> Said:
        """Fill acts with values.

        Args:
            acts: Delexicalized acts.
            belief: The agent's belief. It is not updated.
            goal: The user's goal, whose `fail_book` values are not available; without one, everything is.

        Returns:
            What is said.
        """
        said = Said()
        candidates: dict[str, Sequence[int]] = {}
        for act in acts:
            name = belief.active if act.domain == BOOKING else act.domain
            about = belief.domains.get(name)
            if about is None:
                if act.domain == BOOKING:
                    said.n_unsayable += 1
                else:
                    said.acts.append(act)
                continue
            spec = self._ontology[name]
            if act.intent in BOOKS:
                if not any(booking.domain == name for booking in said.bookings):
                    self._book(act, spec, about, goal, said)
                continue
            value = act.value
            if value:
                value = self._value(act, spec, about, candidates)
                if not value:
                    said.n_unsayable += 1
                    continue
                said.values[act] = value
            said.acts.append(DialogueAct(act.intent, name, act.slot, value))
            if spec.generated and act.slot == spec.key:
                said.bookings.append(Booking(name, value, dict(about.constraints), ""))
        return said

    def can_say(self, act: DialogueAct, belief: BeliefState) -> bool:
        """Whether a delexicalized act has a value in this state."""
        name = belief.active if act.domain == BOOKING else act.domain
        about = belief.domains.get(name)
        if about is None:
            return act.domain != BOOKING
        spec = self._ontology[name]
        if act.intent in BOOKS:
            return self._can_book(spec, about)
        return not act.value or bool(self._value(act, spec, about, {}))

    def candidates(self, name: str, belief: DomainBelief) -> Sequence[int]:
        """Numbers of the entities that satisfy all constraints, the offered one first."""
        found = self._database.query(name, belief.constraints)
        if belief.offered:
            key, entities = self._ontology[name].key, self._database.entities(name)
            for position, i in enumerate(found):
                if entities[i].get(key) == belief.offered:
                    return (i, *found[:position], *found[position + 1 :]) if position else found
        return found

    def _value(self, act: DialogueAct, spec: Domain, belief: DomainBelief, candidates: dict[str, Sequence[int]]) -> str:
        """The value of an act; empty if it has none. `candidates` keeps those of the domains of this utterance."""
        slot = act.slot
        if slot == REFERENCE:
            return belief.reference
        if slot in spec.bookable:
            return belief.booking.get(slot, "")
        if act.intent == NO_OFFER:
            return belief.constraints.get(slot, "")
        if act.intent not in NAMING:
            return ""
        if spec.generated:
            return self._generated(spec, slot, belief)
        if slot == CHOICE:
            return str(len(self._database.query(spec.name, belief.constraints)))
        found = candidates.get(spec.name)
        if found is None:
            found = candidates[spec.name] = self.candidates(spec.name, belief)
        number = int(act.value) - 1
        return self._database.entities(spec.name)[found[number]].get(slot, "") if number < len(found) else ""

    def _generated(self, spec: Domain, slot: str, belief: DomainBelief) -> str:
        """A value of an offer that is made up from the constraints, always the same for the same constraints."""
        if slot not in spec.generated:
            value = belief.constraints.get(slot, "")
            return "" if value == DONT_CARE else value
        if not all(any(slot in belief.constraints for slot in group) for group in spec.required):
            return ""
        entities = self._database.entities(spec.name)
        digest = _digest(spec.name, belief.constraints)
        return entities[digest % len(entities)].get(slot, "") if entities else ""

    def _can_book(self, spec: Domain, belief: DomainBelief) -> bool:
        known = all(slot in belief.booking for slot in spec.bookable)
        return bool(spec.bookable) and known and bool(self._database.query(spec.name, belief.constraints))

    def _book(self, act: DialogueAct, spec: Domain, belief: DomainBelief, goal: Goal | None, said: Said) -> None:
        if not self._can_book(spec, belief):
            said.n_unsayable += 1
            return
        values = {slot: belief.booking[slot] for slot in spec.bookable}
        taken = goal.domains[spec.name].fail_book if goal is not None and spec.name in goal.domains else {}
        if taken and all(values[slot] == value for slot, value in taken.items()):
            refusal = DialogueAct(NO_BOOK, spec.name)
            if refusal not in said.acts:  # other acts of the same booking
                said.acts.append(refusal)
            return
        entity = self._database.entities(spec.name)[self.candidates(spec.name, belief)[0]].get(spec.key, "")
        reference = f"{_digest(spec.name, {**values, spec.key: entity}):08X}"
        said.bookings.append(Booking(spec.name, entity, values, reference))
        told = {spec.key: entity, **values, REFERENCE: reference}
        said.acts += [DialogueAct(act.intent, spec.name, slot, value) for slot, value in told.items()]
        said.values[act] = told.get(act.slot, "")


def _digest(name: str, values: Mapping[str, str]) -> int:
    """A number below 2**32 that depends on the values only."""
    text = "\n".join((name, *(f"{slot}={value}" for slot, value in sorted(values.items()))))
    return int.from_bytes(hashlib.blake2s(text.encode(), digest_size=4).digest(), "big")
