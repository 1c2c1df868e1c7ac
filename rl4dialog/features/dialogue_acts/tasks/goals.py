"""Goals of users: what they look for, ask for and book, in each domain."""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from pydantic import ConfigDict, StrictStr

from rl4dialog.core.arguments import parsed
from rl4dialog.core.errors import DataError, shown
from rl4dialog.features.dialogue_acts.tasks.acts import DONT_CARE
from rl4dialog.features.dialogue_acts.tasks.ontology import REFERENCE, Database, Ontology
from rl4dialog.features.dialogue_acts.tasks.templates import Templates

Values = Mapping[str, StrictStr]  # by slot
VALUED_FIELDS = ("info", "fail_info", "book", "fail_book")  # fields of `DomainGoal` that map slots to values


@dataclass(frozen=True)
class DomainGoal:
    """What a user wants in one domain.

    ``first_info`` and ``first_book`` are what it wants before "no offer" and before "no booking".
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")
    info: Values = field(default_factory=dict)  # constraints on the entity, by slot
    # constraints that the user names first, where they differ from `info`, which replaces them after "no offer"
    fail_info: Values = field(default_factory=dict)
    requests: tuple[StrictStr, ...] = ()  # slots of the entity that the user wants to know
    book: Values = field(default_factory=dict)  # values of the booking, by slot; empty if nothing is booked
    # values that the user asks for first and that are not available, where they differ from `book`
    fail_book: Values = field(default_factory=dict)

    @property
    def first_info(self) -> dict[str, str]:
        return {**self.info, **self.fail_info}

    @property
    def first_book(self) -> dict[str, str]:
        return {**self.book, **self.fail_book}


@dataclass(frozen=True)
class Goal:
    """A user's goal."""

    id: str
    domains: Mapping[str, DomainGoal]  # goal of each domain, in the order in which the user comes to them
    text: str = ""  # the goal in words, for people; empty if there are none

    @property
    def key(self) -> str:
        """The same for all goals with the same domains, slots and values, in any order."""
        domains = []
        for name, wanted in self.domains.items():
            values = (sorted(getattr(wanted, field).items()) for field in VALUED_FIELDS)
            domains.append((name, *values, sorted(wanted.requests)))
        return repr(sorted(domains))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def goal_text(domains: Mapping[str, DomainGoal], templates: Templates) -> str:
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
    """Read a goal from JSON, as `Goal.to_json` writes it. Values are normalized."""
    if not isinstance(record, Mapping) or not record.get("domains"):
        raise DataError(f"{where}: a goal must be an object with 'domains', not {shown(record)}")
    domains = {}
    for name, given in parsed(dict[str, DomainGoal], record["domains"], f"{where}: domains of the goal").items():
        if name not in ontology:
            raise DataError(f"{where}: domain {name!r} of the goal is unknown (known: {', '.join(ontology.domains)})")
        spec = ontology[name]
        slots = {"info": spec.informable, "book": spec.bookable, "requests": spec.requestable}
        for key in (*VALUED_FIELDS, "requests"):
            known = slots[key.removeprefix("fail_")]
            if unknown := [slot for slot in getattr(given, key) if slot not in known]:
                problem = f"{key} has the unknown slot {unknown[0]!r} (known: {', '.join(known) or 'none'})"
                raise DataError(f"{where}: goal of domain {name!r}: {problem}")
        values: dict[str, Any] = {
            key: {slot: ontology.normalized(name, slot, value) for slot, value in getattr(given, key).items()}
            for key in VALUED_FIELDS
        }
        domains[name] = replace(given, **values)
    return Goal(str(record.get("id", "")), domains, str(record.get("text", "")))


def problems(goal: Goal, database: Database) -> list[str]:
    """Why a goal cannot be reached; empty if it can.

    A goal can be reached if in each domain an entity satisfies the final constraints and has all requested slots.
    """
    found = []
    for name, wanted in goal.domains.items():
        spec = database.ontology[name]
        if spec.generated:
            continue
        entities = [database.entities(name)[i] for i in database.query(name, wanted.info)]
        if not entities:
            found.append(f"{name}: no entity satisfies {dict(wanted.info)}")
            continue
        for slot in wanted.requests:
            of_booking = slot in spec.bookable or (slot == REFERENCE and wanted.book)
            if not of_booking and not any(entity.get(slot) for entity in entities):
                found.append(f"{name}: no entity that satisfies {dict(wanted.info)} has a {slot}")
    return found


_MAX_TRIES = 10_000
T = TypeVar("T")


class Shape(NamedTuple):
    """A goal of one domain without its values: slots in alphabetical order, of each field of `DomainGoal`."""

    info: tuple[str, ...]
    fail_info: tuple[str, ...]
    book: tuple[str, ...]
    fail_book: tuple[str, ...]
    requests: tuple[str, ...]


class GoalStatistics:
    """Counts over goals, from which new goals are drawn, but none whose key is held out.

    ConvLab-2's goal generator counts each slot by itself, and repairs what does not go together. Here, the slots of a
    domain's goal are counted as a whole, so a drawn goal has slots that some user had together. Values are drawn
    independently of each other and of other domains: a hotel is in the area of the restaurant only by chance.
    """

    def __init__(
        self, goals: Iterable[Goal], database: Database, held_out: Collection[str], templates: Templates
    ) -> None:
        self._database, self._held_out, self._templates = database, frozenset(held_out), templates
        self.combinations: Counter[tuple[str, ...]] = Counter()
        self.shapes: dict[str, Counter[Shape]] = {}
        self.values: dict[tuple[str, str, str], Counter[str]] = {}
        for goal in goals:
            self.combinations[tuple(goal.domains)] += 1
            for name, wanted in goal.domains.items():
                self.shapes.setdefault(name, Counter())[shape_of(wanted)] += 1
                for kind in VALUED_FIELDS:
                    for slot, value in getattr(wanted, kind).items():
                        self.values.setdefault((name, kind, slot), Counter())[value] += 1
        self._combinations = _Draws(self.combinations)
        self._shapes = {name: _Draws(counts) for name, counts in self.shapes.items()}
        self._values = {key: _Draws(counts) for key, counts in self.values.items()}

    def draw(self, rng: np.random.Generator) -> tuple[Goal, int]:
        """Draw a goal that the database can satisfy; also return how often values or the whole were drawn again.

        First come the domains, then the slots of each, then their values. Values are drawn again until an entity
        satisfies all constraints and has what is requested, and none satisfies the first constraints of a goal with
        others to fall back on. A held-out goal is drawn again as a whole.
        """
        n_again = 0
        for _ in range(_MAX_TRIES):
            domains = {}
            for name in self._combinations(rng):
                domains[name], n_tries = self._domain_goal(name, self._shapes[name](rng), rng)
                n_again += n_tries - 1
            goal = Goal("", domains)
            if goal.key not in self._held_out:
                id = hashlib.blake2s(goal.key.encode(), digest_size=6).hexdigest()
                return Goal(id, domains, goal_text(domains, self._templates)), n_again
            n_again += 1
        problem = f"all of {_MAX_TRIES:,} drawn goals are goals of val or test, too"
        raise DataError(f"env.args.goals: statistics: {problem}; use goals: corpus")

    def _domain_goal(self, name: str, shape: Shape, rng: np.random.Generator) -> tuple[DomainGoal, int]:
        """Draw values until the database can satisfy them; also return the number of tries."""
        for n_tries in range(1, _MAX_TRIES + 1):
            drawn = {
                kind: {slot: self._values[name, kind, slot](rng) for slot in getattr(shape, kind)}
                for kind in VALUED_FIELDS
            }
            wanted = DomainGoal(requests=shape.requests, **drawn)
            if self._can_be_reached(name, wanted):
                return wanted, n_tries
        slots = ", ".join(f"{kind} {' and '.join(found)}" for kind, found in shape._asdict().items() if found)
        problem = f"none of {_MAX_TRIES:,} goals with {slots} can be reached with the database"
        raise DataError(f"env.args.goals: statistics: domain {name!r}: {problem}; use goals: corpus")

    def _can_be_reached(self, name: str, wanted: DomainGoal) -> bool:
        """Whether an entity satisfies the goal and, if it has fallbacks, none satisfies what comes before them."""
        for first, final in ((wanted.fail_info, wanted.info), (wanted.fail_book, wanted.book)):
            if any(value == final.get(slot) for slot, value in first.items()):
                return False
        if problems(Goal("", {name: wanted}), self._database):
            return False
        is_generated = self._database.ontology[name].generated
        return not wanted.fail_info or bool(is_generated) or not self._database.query(name, wanted.first_info)


def shape_of(wanted: DomainGoal) -> Shape:
    return Shape(*(tuple(sorted(getattr(wanted, field))) for field in Shape._fields))


class _Draws(Generic[T]):
    """Draws items as often as they were counted."""

    def __init__(self, counts: Mapping[T, int]) -> None:
        self._items, self._ends = [*counts], [*itertools.accumulate(counts.values())]

    def __call__(self, rng: np.random.Generator) -> T:
        return self._items[bisect_right(self._ends, int(rng.integers(self._ends[-1])))]
