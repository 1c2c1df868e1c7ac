"""Outcome of a dialogue: whether the user's goal was reached, by our rules and by ConvLab-2's; rewards and records."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from rl4dialog.core.errors import ConfigError
from rl4dialog.core.types import AGENT, PARTNER, SPEAKERS
from rl4dialog.features.dialogue_acts.tasks import multiwoz
from rl4dialog.features.dialogue_acts.tasks.acts import BOOK, DONT_CARE, INFORM, NO_BOOK, SELECT, TELLING, DialogueAct
from rl4dialog.features.dialogue_acts.tasks.agenda import is_no_offer
from rl4dialog.features.dialogue_acts.tasks.dialogue import Booking, Exchange, TaskDialogue
from rl4dialog.features.dialogue_acts.tasks.goals import DomainGoal, Goal, goal_text
from rl4dialog.features.dialogue_acts.tasks.ontology import REFERENCE, Database, Domain, Entity, minutes, satisfies
from rl4dialog.features.dialogue_acts.tasks.templates import Templates


@dataclass
class DomainOutcome:
    """Outcome in one domain of the goal."""

    # whether the entity that was named last satisfies the user's constraints; where something is booked, the booked one
    match: bool = False
    book: bool | None = None  # whether the booking is as asked; ``None`` if the goal has none
    n_answered: int = 0  # number of requests answered with the value of this entity
    n_requested: int = 0  # number of requests of the goal
    # requestable slots that the agent told, apart from the goal's constraints, the key and values of the booking
    n_told: int = 0
    failures: list[str] = field(default_factory=list)  # why the goal was not reached, in words

    @property
    def success(self) -> bool:
        return self.match and self.n_answered == self.n_requested and self.book is not False


@dataclass(frozen=True)
class Outcome:
    """Outcome of a dialogue."""

    domains: dict[str, DomainOutcome]
    complete: bool  # whether the user believes that it has everything
    n_turns: int
    n_acts: int  # that the agent said

    @property
    def success(self) -> bool:
        return all(outcome.success for outcome in self.domains.values())

    @property
    def failures(self) -> list[str]:
        return [failure for outcome in self.domains.values() for failure in outcome.failures]

    def numbers(self) -> dict[str, float]:
        """Scores by name, each from 0 to 1 but for the counts.

        ``book`` is missing if the goal has no booking. ``inform_precision`` is the share of what was told that was
        asked for, and ``inform_recall`` the share of requests that were answered with the value of the right entity;
        both are 1 if there is nothing to tell.
        """
        outcomes = self.domains.values()
        answered, requested, told = (_total(outcomes, name) for name in ("n_answered", "n_requested", "n_told"))
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


def _total(outcomes: Iterable[Any], name: str) -> int:
    return sum(getattr(outcome, name) for outcome in outcomes)


def outcome_of(goal: Goal, exchanges: Sequence[Exchange], complete: bool, database: Database) -> Outcome:
    """Judge a dialogue by what was really said and booked. `complete`: the user believes that it has everything."""
    outcomes = {
        name: _domain_outcome(wanted, exchanges, database.ontology[name], database)
        for name, wanted in goal.domains.items()
    }
    return Outcome(outcomes, complete, len(exchanges), sum(len(exchange.said) for exchange in exchanges))


def _domain_outcome(
    wanted: DomainGoal, exchanges: Sequence[Exchange], spec: Domain, database: Database
) -> DomainOutcome:
    said = [act for exchange in exchanges for act in exchange.said if act.domain == spec.name]
    asked = [act for exchange in exchanges for act in exchange.user if act.domain == spec.name and act.intent == INFORM]
    bookings = [each for exchange in exchanges for each in exchange.bookings if each.domain == spec.name]
    booking = bookings[-1] if bookings else None
    info = dict(wanted.info) if any(map(is_no_offer, said)) else wanted.first_info
    if spec.generated:  # the goal need not have the ends of a ride: what the user said counts
        info = {**{act.slot: act.value for act in asked if act.slot in spec.informable}, **info}
    book = dict(wanted.book) if any(act.intent == NO_BOOK for act in said) else wanted.first_book
    told = {act.slot: act.value for act in said if act.intent in TELLING - {SELECT} and act.slot}
    outcome = DomainOutcome(n_requested=len(wanted.requests))
    named = booking.entity if booking is not None and (book or spec.generated) else told.get(spec.key, "")
    found: Entity = {}
    entities = database.named(spec.name, named) if named else ()
    if not entities:
        outcome.failures.append(f"no {spec.name} offered")
    else:
        described = [booking.values] if spec.generated and booking is not None else entities
        judged = [(entity, _wrong(spec, values, info)) for entity, values in zip(entities, described, strict=False)]
        found, wrong = min(judged, key=lambda item: len(item[1]))
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
            outcome.failures.append(f"{spec.name}: " + (f"wrong {slot}" if slot in told else f"{slot} not told"))
    ignored = {spec.key, REFERENCE, *info, *spec.bookable} - set(wanted.requests)
    outcome.n_told = sum(slot in spec.requestable and slot not in ignored for slot in told)
    return outcome


def _wrong(spec: Domain, values: Entity, info: Mapping[str, str]) -> list[str]:
    return [slot for slot, value in info.items() if not satisfies(spec, slot, values.get(slot, ""), value)]


_CONVLAB2 = multiwoz.TABLE["convlab2"]
NEVER_IN_VAIN = frozenset(_CONVLAB2["never_in_vain"])
"""Slots that do not count as told in vain, whether they were requested or not."""
RESEMBLANCE = 60  # smallest resemblance, in percent, of a told value and that of an entity
_UNKNOWN = "?"
_PATTERNS, _LISTED = _CONVLAB2["patterns"], _CONVLAB2["listed"]


@dataclass(frozen=True)
class ConvLabDomain:
    """Outcome in one domain of the goal."""

    n_answered: int
    n_requested: int
    n_in_vain: int  # number of slots that were told without a request, and of malformed values
    # share of the constraints that the booked entity satisfies, 0 without one; ``None`` if nothing is to be judged
    match: float | None
    is_consistent: bool  # whether an entity satisfies all constraints, resembles what was told and is the booked one

    @property
    def success(self) -> bool:
        return _is_success(self.n_answered, self.n_requested, self.match)


@dataclass(frozen=True)
class ConvLabOutcome:
    """Outcome of a dialogue by the rules of ConvLab-2, so that results can be compared with published ones.

    Source: ConvLab-2's ``convlab2/evaluator/multiwoz_eval.py``. Its rules differ from those of `Outcome`:

    - A request is answered by any well-formed value of any entity, at any time. Those for references do not count.
    - A booking is judged by the first one, and only by its entity: not by times, numbers of people or ends of a ride.
    - The constraints are always the final ones, even if the user had no reason to replace the first.
    - A booking without constraints is not judged, and a goal with neither requests nor judged bookings always fails.
    - In addition, one entity must satisfy the constraints and resemble all that was told about the requests.
    - Some slots are never told in vain, as ConvLab-2 compares two spellings of them: see `NEVER_IN_VAIN`.

    A pattern of well-formed values is used where the database has such a value; elsewhere, all are well-formed.
    """

    domains: dict[str, ConvLabDomain]  # those of the goal
    complete: bool  # whether the user believes that it has everything
    active: str  # the domain that was talked about last; empty before that
    n_in_vain: int = 0  # number of slots that were told of domains outside the goal, and of malformed values of them

    @property
    def book(self) -> float | None:
        """Mean share of satisfied constraints over the judged bookings; ``None`` if there are none."""
        matches = [outcome.match for outcome in self.domains.values() if outcome.match is not None]
        return sum(matches) / len(matches) if matches else None

    @property
    def success(self) -> bool:
        outcomes = self.domains.values()
        answered, requested = (_total(outcomes, name) for name in ("n_answered", "n_requested"))
        return _is_success(answered, requested, self.book) and all(outcome.is_consistent for outcome in outcomes)

    def numbers(self) -> dict[str, float]:
        """Scores by name, from 0 to 1. Those of bookings and requests are missing if the goal has none."""
        outcomes = self.domains.values()
        answered, requested, in_vain = (_total(outcomes, name) for name in ("n_answered", "n_requested", "n_in_vain"))
        in_vain += self.n_in_vain
        found = {"convlab2/success": float(self.success), "convlab2/complete": float(self.complete)}
        found["convlab2/final_goal"] = sum(outcome.is_consistent for outcome in outcomes) / len(outcomes)
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
    goal: Goal, exchanges: Sequence[Exchange], complete: bool, database: Database, reply: Sequence[DialogueAct] = ()
) -> ConvLabOutcome:
    """Judge a dialogue, after whose last exchange the user says `reply`, by ConvLab-2's rules."""
    ontology, judged = database.ontology, TELLING - {SELECT, BOOK}
    said = [act for exchange in exchanges for act in exchange.said]
    told = [act for act in said if act.intent in judged and act.slot and act.value not in ("", DONT_CARE)]
    first = {booking.domain: booking for exchange in exchanges[::-1] for booking in exchange.bookings[::-1]}
    outcomes = {}
    for name in dict.fromkeys((*goal.domains, *(act.domain for act in told if act.domain in ontology))):
        wanted, about = goal.domains.get(name, DomainGoal()), [act for act in told if act.domain == name]
        outcomes[name] = _convlab_domain(wanted, about, first.get(name), ontology[name], database)
    elsewhere = sum(outcome.n_in_vain for name, outcome in outcomes.items() if name not in goal.domains)
    spoken = [act for exchange in exchanges for act in (*exchange.user, *exchange.said)]
    active = next((act.domain for act in reversed([*spoken, *reply]) if act.domain in ontology), "")
    return ConvLabOutcome({name: outcomes[name] for name in goal.domains}, complete, active, elsewhere)


def _convlab_domain(
    wanted: DomainGoal, told: list[DialogueAct], booking: Booking | None, spec: Domain, database: Database
) -> ConvLabDomain:
    right = [act for act in told if _is_well_formed(act.slot, act.value, spec, database)]
    slots = {act.slot for act in right}
    surplus = slots & {*spec.requestable} - {*wanted.requests} - {*wanted.info} - NEVER_IN_VAIN
    requests = [slot for slot in wanted.requests if slot != REFERENCE]
    judged = [] if spec.name in _CONVLAB2["uncompared"] else requests
    answers = dict.fromkeys(judged, _UNKNOWN) | {act.slot: act.value for act in told if act.slot in judged}
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
    judged = {slot: value for slot, value in wanted.info.items() if slot not in _CONVLAB2["rides"]}
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
    named = booking.entity if wanted.book and booking is not None else None
    return any(_resembles(spec, each, answers) and named in (None, each.get(spec.key)) for each in entities)


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
    if f"{spec.name} {slot}" in _CONVLAB2["unchecked"] or (slot not in _PATTERNS and slot not in _LISTED):
        return True
    values = database.values(spec.name, slot)
    if slot in _LISTED:
        return value in values or not values
    fits = functools.partial(re.fullmatch, _PATTERNS[slot])
    return bool(fits(value)) or not any(map(fits, values))


@dataclass(frozen=True)
class TaskTurn:
    """What a reward sees."""

    exchange: Exchange
    outcome: Outcome | None  # that of the dialogue; ``None`` before its last turn
    # judges the dialogue so far, with the user's answer, by ConvLab-2's rules
    convlab: Callable[[], ConvLabOutcome] | None = None


TurnReward = Callable[[TaskTurn], float]


class TaskReward:
    """Pays for success at the end, and charges every turn.

    The defaults are ConvLab-3's 80, -40 and -1, divided by 80.

    Args:
        success: Paid at the end of a successful dialogue.
        failure: Paid at the end of any other.
        turn: Paid for every turn.
    """

    def __init__(self, success: float = 1.0, failure: float = -0.5, turn: float = -0.0125) -> None:
        if success < failure or success == failure == turn == 0:
            raise ConfigError(f"reward 'task_reward': success ({success:g}) must be above failure ({failure:g})")
        self._success, self._failure, self._turn = success, failure, turn

    def __call__(self, turn: TaskTurn) -> float:
        if turn.outcome is None:
            return self._turn
        return self._turn + (self._success if turn.outcome.success else self._failure)


class ConvLab2Reward:
    """Reward of ConvLab-2, by its own rules of success.

    Every turn pays one of three amounts, so an agent can earn more by staying in a domain that has succeeded.

    Args:
        success: Paid for every turn while the whole dialogue is a success.
        domain: Paid for every other turn while the domain that was talked about last is a success.
        turn: Paid for any other turn.
    """

    def __init__(self, success: float = 40.0, domain: float = 5.0, turn: float = -1.0) -> None:
        self._success, self._domain, self._turn = success, domain, turn

    def __call__(self, turn: TaskTurn) -> float:
        if turn.convlab is None:
            raise ValueError("ConvLab2Reward needs a TaskTurn with 'convlab'")
        found = turn.convlab()
        if found.success:
            return self._success
        current = found.domains.get(found.active)
        return self._domain if current is not None and current.success else self._turn


_OUTCOME = ("success", "complete", "match", "book")


def transcript(
    dialogue: TaskDialogue, rewards: Sequence[float], outcome: Outcome, user_is_over: bool, templates: Templates
) -> dict[str, Any]:
    """Write a dialogue as plain JSON types, with the acts that each side understood or chose, and why it failed."""
    turns: list[dict[str, Any]] = []

    def add(speaker: int, acts: Iterable[DialogueAct], text: str, **more: Any) -> None:
        turns.append({"speaker": SPEAKERS[speaker], "text": text, "acts": _plain(acts), **more})

    for exchange, reward in zip(dialogue.exchanges, rewards, strict=True):
        heard, chosen = _plain(exchange.heard), _plain(exchange.chosen)
        add(PARTNER, exchange.user, templates.render(exchange.user, "user"), understood=heard)
        text = exchange.text or templates.render(exchange.said, "agent")
        bookings = [booking._asdict() for booking in exchange.bookings]
        add(AGENT, exchange.said, text, chosen=chosen, bookings=bookings, reward=reward)
    add(PARTNER, dialogue.told, templates.render(dialogue.told, "user"))
    return {
        "goal": dialogue.goal.to_json(),
        "goal_text": goal_text(dialogue.goal.domains, templates),
        "turns": turns,
        "outcome": {key: value for key, value in outcome.numbers().items() if key in _OUTCOME},
        "ended_by": "partner" if user_is_over else "max_turns",
        "failures": failures(dialogue.exchanges, outcome, user_is_over),
    }


def failures(exchanges: Sequence[Exchange], outcome: Outcome, user_is_over: bool) -> list[str]:
    if outcome.success:
        return []
    found = list(outcome.failures)
    if any(one.chosen == other.chosen for one, other in itertools.pairwise(exchanges)):
        found.append("the agent repeated itself")
    if not user_is_over:
        found.append("out of turns")
    elif not outcome.complete:
        found.append("the user gave up")
    return found


def _plain(acts: Iterable[DialogueAct]) -> list[list[str]]:
    return [list(act) for act in acts]
