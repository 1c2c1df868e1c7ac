"""Outcome of a dialogue: whether the user's goal was reached, judged by what was really said and booked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rl4dialog.tasks.dialogue_acts.acts import (
    INFORM,
    NO_BOOK,
    SELECT,
    TELLING,
    DialogueAct,
)
from rl4dialog.tasks.dialogue_acts.agenda import is_no_offer
from rl4dialog.tasks.dialogue_acts.database import Database, Entity
from rl4dialog.tasks.dialogue_acts.goals import DomainGoal, Goal
from rl4dialog.tasks.dialogue_acts.lexicalizer import Booking
from rl4dialog.tasks.dialogue_acts.ontology import REFERENCE, Domain, Ontology, satisfies

_TELLING = TELLING - {SELECT}


class Exchange(NamedTuple):
    """A turn of the agent, with the user's utterance before it.

    Attributes:
        user: What the user said.
        heard: What the agent understood.
        chosen: The agent's delexicalized acts.
        said: The agent's acts with values, as the user understands them.
        bookings: Bookings that were made.
        text: The agent's words; empty if acts reach the user as acts.
    """

    user: tuple[DialogueAct, ...]
    heard: tuple[DialogueAct, ...]
    chosen: tuple[DialogueAct, ...]
    said: tuple[DialogueAct, ...]
    bookings: tuple[Booking, ...] = ()
    text: str = ""


@dataclass
class DomainOutcome:
    """Outcome in one domain of the goal.

    Attributes:
        match: Whether the entity that was named last satisfies the user's constraints; where something is booked, the
            booked one.
        book: Whether the booking is as asked; ``None`` if the goal has none.
        n_answered: Number of requests answered with the value of this entity.
        n_requested: Number of requests of the goal.
        n_told: Number of requestable slots that the agent told, apart from the goal's constraints, the key and values
            of the booking.
        failures: Why the goal was not reached, in words.
    """

    match: bool = False
    book: bool | None = None
    n_answered: int = 0
    n_requested: int = 0
    n_told: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def success(self) -> bool:
        """Whether everything is as the user wanted it."""
        return self.match and self.n_answered == self.n_requested and self.book is not False


@dataclass(frozen=True)
class Outcome:
    """Outcome of a dialogue.

    Attributes:
        domains: Outcome in each domain of the goal.
        complete: Whether the user believes that it has everything.
        n_turns: Number of the agent's turns.
        n_acts: Number of acts that the agent said.
    """

    domains: dict[str, DomainOutcome]
    complete: bool
    n_turns: int
    n_acts: int

    @property
    def success(self) -> bool:
        """Whether every domain is a success."""
        return all(outcome.success for outcome in self.domains.values())

    @property
    def failures(self) -> list[str]:
        """Why the goal was not reached, in words."""
        return [failure for outcome in self.domains.values() for failure in outcome.failures]

    def numbers(self) -> dict[str, float]:
        """Scores by name, each from 0 to 1 but for the counts.

        ``book`` is missing if the goal has no booking. ``inform_precision`` is the share of what was told that was
        asked for, and ``inform_recall`` the share of requests that were answered with the value of the right entity;
        both are 1 if there is nothing to tell.
        """
        outcomes = self.domains.values()
        answered = sum(outcome.n_answered for outcome in outcomes)
        requested = sum(outcome.n_requested for outcome in outcomes)
        told = sum(outcome.n_told for outcome in outcomes)
        precision = answered / told if told else 1.0
        recall = answered / requested if requested else 1.0
        booked = [outcome.book for outcome in outcomes if outcome.book is not None]
        return {
            "success": float(self.success),
            "complete": float(self.complete),
            "match": sum(outcome.match for outcome in outcomes) / len(self.domains),
            **({"book": sum(booked) / len(booked)} if booked else {}),
            "inform_precision": precision,
            "inform_recall": recall,
            "inform_f1": 2 * precision * recall / (precision + recall) if precision + recall else 0.0,
            "acts_per_turn": self.n_acts / self.n_turns if self.n_turns else 0.0,
        }


def outcome_of(
    goal: Goal, exchanges: Sequence[Exchange], complete: bool, ontology: Ontology, database: Database
) -> Outcome:
    """Judge a dialogue.

    Args:
        goal: The user's goal.
        exchanges: The dialogue.
        complete: Whether the user believes that it has everything.
        ontology: The domains.
        database: Their entities.
    """
    said = [act for exchange in exchanges for act in exchange.said]
    told = [act for exchange in exchanges for act in exchange.user if act.intent == INFORM]
    bookings = {booking.domain: booking for exchange in exchanges for booking in exchange.bookings}
    outcomes = {
        name: _domain_outcome(
            wanted,
            {act.slot: act.value for act in told if act.domain == name and act.slot in ontology[name].informable},
            [act for act in said if act.domain == name],
            bookings.get(name),
            ontology[name],
            database,
        )
        for name, wanted in goal.domains.items()
    }
    return Outcome(outcomes, complete, len(exchanges), len(said))


def _domain_outcome(
    wanted: DomainGoal,
    asked: Mapping[str, str],
    said: list[DialogueAct],
    booking: Booking | None,
    spec: Domain,
    database: Database,
) -> DomainOutcome:
    intents = {act.intent for act in said}
    info = dict(wanted.info) if any(map(is_no_offer, said)) else wanted.first_info
    if spec.generated:  # the goal need not have the ends of a ride: what the user said counts
        info = {**asked, **info}
    book = dict(wanted.book) if NO_BOOK in intents else wanted.first_book
    told = {act.slot: act.value for act in said if act.intent in _TELLING and act.slot}
    outcome = DomainOutcome(n_requested=len(wanted.requests))
    named = booking.entity if booking is not None and (book or spec.generated) else told.get(spec.key, "")
    found: Entity = {}
    entities = database.named(spec.name, named) if named else ()
    if not entities:
        outcome.failures.append(f"no {spec.name} offered")
    else:
        described = [booking.values] if spec.generated and booking is not None else entities
        found, wrong = min(
            ((entity, _wrong(spec, values, info)) for entity, values in zip(entities, described, strict=False)),
            key=lambda item: len(item[1]),
        )
        outcome.match = not wrong
        if wrong:
            outcome.failures.append(f"wrong {spec.name}: {', '.join(wrong)}")
    if book:
        outcome.book = booking is not None and all(booking.values.get(slot) == value for slot, value in book.items())
        if not outcome.book:
            outcome.failures.append(f"{spec.name} not booked" if booking is None else f"wrong booking of {spec.name}")
    for slot in wanted.requests:
        right = (booking.reference if booking is not None else "") if slot == REFERENCE else found.get(slot, "")
        if right and told.get(slot) == right:
            outcome.n_answered += 1
        else:
            outcome.failures.append(
                f"{spec.name}: {slot} not told" if slot not in told else f"{spec.name}: wrong {slot}"
            )
    ignored = {spec.key, REFERENCE, *info, *spec.bookable} - set(wanted.requests)
    outcome.n_told = sum(slot in spec.requestable and slot not in ignored for slot in told)
    return outcome


def _wrong(spec: Domain, values: Entity, info: Mapping[str, str]) -> list[str]:
    return [slot for slot, value in info.items() if not satisfies(spec, slot, values.get(slot, ""), value)]
