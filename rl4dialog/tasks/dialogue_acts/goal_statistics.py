"""Statistics counted over goals, and new goals drawn from them.

ConvLab-2's goal generator counts each slot by itself, and repairs what does not go together. Here, the slots of a
domain's goal are counted as a whole, so a drawn goal has slots that some user had together. What is left out: values
are drawn independently of each other and of other domains, so a hotel is not in the area of the restaurant more often
than by chance.
"""

from __future__ import annotations

import hashlib
import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from rl4dialog.core.errors import DataError
from rl4dialog.tasks.dialogue_acts.database import Database
from rl4dialog.tasks.dialogue_acts.goals import VALUED_FIELDS, DomainGoal, Goal, goal_text, problems
from rl4dialog.tasks.dialogue_acts.ontology import Ontology
from rl4dialog.tasks.dialogue_acts.templates import Templates

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
    """Counts over goals, from which new goals are drawn.

    Args:
        goals: The goals.
        ontology: The domains.
        database: Their entities.
        held_out: Keys of goals that are never drawn, such as those of evaluations.
        templates: Words of the drawn goals' texts.

    Attributes:
        combinations: Number of goals with these domains, in this order.
        shapes: Number of goals with these slots, by domain.
        values: Number of goals with this value, by domain, field of `DomainGoal` and slot.
    """

    def __init__(
        self,
        goals: Iterable[Goal],
        ontology: Ontology,
        database: Database,
        held_out: Collection[str],
        templates: Templates,
    ) -> None:
        self._ontology, self._database = ontology, database
        self._held_out, self._templates = frozenset(held_out), templates
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
        """Draw a goal that the database can satisfy and that is not held out.

        First come the domains, then the slots of each, then their values. Values are drawn again until an entity
        satisfies all constraints and has what is requested, and none satisfies the first constraints of a goal with
        others to fall back on. A held-out goal is drawn again as a whole.

        Args:
            rng: Source of randomness.

        Returns:
            The goal, and how often values or the whole were drawn again.
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
        raise DataError(
            f"env.args.goals: statistics: all of {_MAX_TRIES:,} drawn goals are goals of val or test, too; use goals: "
            f"corpus"
        )

    def _domain_goal(self, name: str, shape: Shape, rng: np.random.Generator) -> tuple[DomainGoal, int]:
        """Draw values until the database can satisfy them; also returns the number of tries."""
        for n_tries in range(1, _MAX_TRIES + 1):
            drawn = {
                kind: {slot: self._values[name, kind, slot](rng) for slot in getattr(shape, kind)}
                for kind in VALUED_FIELDS
            }
            wanted = DomainGoal(requests=shape.requests, **drawn)
            if self._can_be_reached(name, wanted):
                return wanted, n_tries
        slots = ", ".join(f"{kind} {' and '.join(found)}" for kind, found in shape._asdict().items() if found)
        raise DataError(
            f"env.args.goals: statistics: domain {name!r}: none of {_MAX_TRIES:,} goals with {slots} can be "
            f"reached with the database; use goals: corpus"
        )

    def _can_be_reached(self, name: str, wanted: DomainGoal) -> bool:
        """Whether an entity satisfies the goal and, if it has fallbacks, none satisfies what comes before them."""
        for first, final in ((wanted.fail_info, wanted.info), (wanted.fail_book, wanted.book)):
            if any(value == final.get(slot) for slot, value in first.items()):
                return False
        if problems(Goal("", {name: wanted}), self._ontology, self._database):
            return False
        is_offered_first = not self._ontology[name].generated and self._database.query(name, wanted.first_info)
        return not (wanted.fail_info and is_offered_first)


def shape_of(wanted: DomainGoal) -> Shape:
    """The slots of a goal."""
    return Shape(*(tuple(sorted(getattr(wanted, field))) for field in Shape._fields))


class _Draws(Generic[T]):
    """Draws items as often as they were counted."""

    def __init__(self, counts: Mapping[T, int]) -> None:
        self._items, self._ends = [*counts], [*itertools.accumulate(counts.values())]

    def __call__(self, rng: np.random.Generator) -> T:
        return self._items[bisect_right(self._ends, int(rng.integers(self._ends[-1])))]
