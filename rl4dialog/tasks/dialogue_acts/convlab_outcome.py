"""Outcome of a dialogue by the rules of ConvLab-2, so that results can be compared with published ones.

Source: ConvLab-2's ``convlab2/evaluator/multiwoz_eval.py``. Its rules differ from those of `outcome` in these points:

- A request counts as answered by any well-formed value of any entity, at any time. Requests for the reference number
  of a booking are not judged.
- A booking is judged by the first one, and only by its entity. Times and numbers of people are not compared, and
  neither are the ends of a ride.
- The constraints are always the final ones, even if the user had no reason to replace the first.
- A booking without constraints is not judged, and a goal that has neither requests nor judged bookings always fails.
- In addition, one entity must satisfy the constraints and resemble all that was told about the requests.
- Some slots are never told in vain, as ConvLab-2 compares two spellings of them: see `NEVER_IN_VAIN`.

A pattern of well-formed values is used where the database has such a value; elsewhere, all values are well-formed.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from rl4dialog.tasks.dialogue_acts.acts import DONT_CARE, INFORM, OFFER_BOOK, OFFER_BOOKED, RECOMMEND, DialogueAct
from rl4dialog.tasks.dialogue_acts.database import Database, Entity
from rl4dialog.tasks.dialogue_acts.goals import DomainGoal, Goal
from rl4dialog.tasks.dialogue_acts.lexicalizer import Booking
from rl4dialog.tasks.dialogue_acts.ontology import REFERENCE, Domain, Ontology, minutes, satisfies
from rl4dialog.tasks.dialogue_acts.outcome import Exchange

NEVER_IN_VAIN = frozenset(
    {"address", "postcode", "pricerange", "entrance fee", "openhours", "price", "duration", "trainID"}
    | {"leaveAt", "arriveBy", "car type"}
)
"""Slots that do not count as told in vain, whether they were requested or not."""
RESEMBLANCE = 60
"""Smallest resemblance, in percent, of a told value and that of an entity."""
_TELLING = frozenset({INFORM, RECOMMEND, OFFER_BOOK, OFFER_BOOKED})
_UNKNOWN = "?"
_PATTERNS = {
    "arriveBy": r"(?:[01]\d|2[0-4]):[0-5]\d",
    "leaveAt": r"(?:[01]\d|2[0-4]):[0-5]\d",
    "duration": r".*minute.*",
    "phone": r"\d{11}",
    "postcode": r"cb\d{1,3}[a-z]{2,3}|pe296fl",
    "price": r".*pound.*",
    "stars": r"\d",
    "trainID": r"tr\d{4}",
}
_LISTED = frozenset({"area", "day", "internet", "parking", "pricerange"})
"""Slots whose well-formed values are those of the database."""
_UNCHECKED = frozenset({("restaurant", "phone"), ("attraction", "pricerange")})
_RIDES = frozenset({"departure", "destination"})


@dataclass(frozen=True)
class ConvLabDomain:
    """Outcome in one domain of the goal.

    Attributes:
        n_answered: Number of answered requests.
        n_requested: Number of requests.
        n_in_vain: Number of slots that were told without a request, and of malformed values.
        match: Share of the constraints that the booked entity satisfies; 0 without a booking, ``None`` if nothing is to
            be booked or there are no constraints.
        is_consistent: Whether an entity satisfies all constraints, resembles what was told and is the booked one.
    """

    n_answered: int
    n_requested: int
    n_in_vain: int
    match: float | None
    is_consistent: bool

    @property
    def success(self) -> bool:
        """Whether all requests are answered and the booked entity is right. `is_consistent` is not part of it."""
        return _is_success(self.n_answered, self.n_requested, self.match)


@dataclass(frozen=True)
class ConvLabOutcome:
    """Outcome of a dialogue.

    Attributes:
        domains: Outcome in each domain of the goal.
        complete: Whether the user believes that it has everything.
        active: The domain that was talked about last; empty before that.
        n_in_vain: Number of slots that were told of domains outside the goal, and of malformed values of them.
    """

    domains: dict[str, ConvLabDomain]
    complete: bool
    active: str
    n_in_vain: int = 0

    @property
    def book(self) -> float | None:
        """Mean share of satisfied constraints over the judged bookings; ``None`` if there are none."""
        matches = [outcome.match for outcome in self.domains.values() if outcome.match is not None]
        return sum(matches) / len(matches) if matches else None

    @property
    def success(self) -> bool:
        """Whether the goal is reached."""
        outcomes = self.domains.values()
        answered, requested = (sum(getattr(o, name) for o in outcomes) for name in ("n_answered", "n_requested"))
        return _is_success(answered, requested, self.book) and all(outcome.is_consistent for outcome in outcomes)

    def numbers(self) -> dict[str, float]:
        """Scores by name, from 0 to 1. Those of bookings and requests are missing if the goal has none."""
        outcomes = self.domains.values()
        answered, requested, in_vain = (
            sum(getattr(outcome, name) for outcome in outcomes) for name in ("n_answered", "n_requested", "n_in_vain")
        )
        in_vain += self.n_in_vain
        found = {"convlab2/success": float(self.success), "convlab2/complete": float(self.complete)}
        if self.book is not None:
            found["convlab2/book"] = self.book
        if requested:
            found["convlab2/inform_precision"] = answered / (answered + in_vain) if answered else 0.0
            found["convlab2/inform_recall"] = answered / requested
            found["convlab2/inform_f1"] = 2 * answered / (answered + in_vain + requested) if answered else 0.0
        return found


def _is_success(n_answered: int, n_requested: int, match: float | None) -> bool:
    """Whether all is answered and matches; at least one of them must be judged."""
    return n_answered == n_requested and (match == 1 if match is not None else n_requested > 0)


def convlab_outcome_of(
    goal: Goal,
    exchanges: Sequence[Exchange],
    complete: bool,
    ontology: Ontology,
    database: Database,
    reply: Sequence[DialogueAct] = (),
) -> ConvLabOutcome:
    """Judge a dialogue.

    Args:
        goal: The user's goal.
        exchanges: The dialogue.
        complete: Whether the user believes that it has everything.
        ontology: The domains.
        database: Their entities.
        reply: What the user says after the last exchange.
    """
    said = [act for exchange in exchanges for act in exchange.said]
    told = [act for act in said if act.intent in _TELLING and act.slot and act.value not in ("", DONT_CARE)]
    first: dict[str, Booking] = {}
    for exchange in exchanges:
        for booking in exchange.bookings:
            first.setdefault(booking.domain, booking)
    outcomes = {
        name: _domain_outcome(
            goal.domains.get(name, DomainGoal()),
            [act for act in told if act.domain == name],
            first.get(name),
            ontology[name],
            database,
        )
        for name in dict.fromkeys((*goal.domains, *(act.domain for act in told)))
        if name in ontology
    }
    wanted = {name: outcomes[name] for name in goal.domains}
    elsewhere = sum(outcome.n_in_vain for name, outcome in outcomes.items() if name not in wanted)
    spoken = [act for exchange in exchanges for act in (*exchange.user, *exchange.said)]
    active = next((act.domain for act in reversed([*spoken, *reply]) if act.domain in ontology), "")
    return ConvLabOutcome(wanted, complete, active, elsewhere)


def _domain_outcome(
    wanted: DomainGoal, told: list[DialogueAct], booking: Booking | None, spec: Domain, database: Database
) -> ConvLabDomain:
    right = [act for act in told if _is_well_formed(act.slot, act.value, spec, database)]
    slots = {act.slot for act in right}
    surplus = slots & {*spec.requestable} - {*wanted.requests} - {*wanted.info} - NEVER_IN_VAIN
    requests = [slot for slot in wanted.requests if slot != REFERENCE]
    answers = {act.slot: act.value for act in told if act.slot in requests}
    return ConvLabDomain(
        n_answered=sum(slot in slots for slot in requests),
        n_requested=len(requests),
        n_in_vain=len(surplus) + len(told) - len(right),
        match=_match(wanted, booking, spec, database),
        is_consistent=bool(spec.generated) or _is_consistent(wanted, answers, booking, spec, database),
    )


def _match(wanted: DomainGoal, booking: Booking | None, spec: Domain, database: Database) -> float | None:
    """Share of the constraints that the booked entity satisfies."""
    if not wanted.book or not wanted.info:
        return None
    if booking is None:
        return 0.0
    judged = {slot: value for slot, value in wanted.info.items() if slot not in _RIDES}
    if spec.generated or not judged:
        return 1.0 if spec.generated else None
    return max(
        sum(_fits(spec, slot, entity.get(slot, ""), value) for slot, value in judged.items()) / len(judged)
        for entity in database.named(spec.name, booking.entity)
    )


def _fits(spec: Domain, slot: str, value: str, wanted: str) -> bool:
    """Whether a value satisfies a constraint; what should be a time and is none always does."""
    if slot in spec.bounds and (minutes(value) is None or minutes(wanted) is None):
        return True
    return satisfies(spec, slot, value, wanted)


def _is_consistent(
    wanted: DomainGoal, answers: dict[str, str], booking: Booking | None, spec: Domain, database: Database
) -> bool:
    """Whether an entity satisfies the constraints, resembles the answers and, if something was booked, is that."""
    entities = [database.entities(spec.name)[i] for i in database.query(spec.name, wanted.info)]
    fitting = (entity for entity in entities if _resembles(spec, entity, answers))
    if not wanted.book or booking is None:
        return any(True for _ in fitting)
    return any(entity.get(spec.key) == booking.entity for entity in fitting)


def _resembles(spec: Domain, entity: Entity, answers: dict[str, str]) -> bool:
    """Whether an entity may be the one of the answers. An answer with a time is taken as a bound."""
    for slot, value in answers.items():
        found = entity.get(slot, _UNKNOWN)
        if slot in spec.bounds:
            if not _fits(spec, slot, found, value):
                return False
        elif found not in (_UNKNOWN, value) and resemblance(value, found) < RESEMBLANCE:
            return False
    return True


@functools.lru_cache(maxsize=100_000)
def resemblance(one: str, other: str) -> float:
    """Resemblance of the shorter text and the part of the longer one that resembles it most, in percent."""
    short, long = sorted((one.strip().lower(), other.strip().lower()), key=len)
    if short in long:
        return 100.0 if short else 0.0
    parts = (long[i : i + len(short)] for i in range(len(long) - len(short) + 1))
    return 100 * max(SequenceMatcher(None, short, part).ratio() for part in parts)


def _is_well_formed(slot: str, value: str, spec: Domain, database: Database) -> bool:
    if (spec.name, slot) in _UNCHECKED or (slot not in _PATTERNS and slot not in _LISTED):
        return True
    values = database.values(spec.name, slot)
    if slot in _LISTED:
        return value in values or not values
    fits = functools.partial(re.fullmatch, _PATTERNS[slot])
    return bool(fits(value)) or not any(map(fits, values))
