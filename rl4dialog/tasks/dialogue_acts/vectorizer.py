"""Observations and actions of a policy: bits for what was said, what is believed, and what the database has."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.tasks.dialogue_acts.acts import BYE, ActVocabulary, DialogueAct
from rl4dialog.tasks.dialogue_acts.dialogue import BeliefState
from rl4dialog.tasks.dialogue_acts.ontology import Database, Ontology

DEFAULT_BLOCKS = ("user_acts", "system_acts", "belief", "requests", "offered", "booked", "db", "turn")
CONVLAB2_BLOCKS = ("user_acts", "system_acts", "convlab2_belief", "convlab2_booked", "convlab2_db", "convlab2_over")
"""Blocks of ConvLab-2's vector of MultiWOZ (``convlab2/policy/vector/vector_multiwoz.py``)."""
N_BINS = 6  # bits of the block ``db`` per domain: none, 1, 2, 3, 4 and at least 5 entities
N_TURN_BITS = 10  # bits of the block ``turn``: one for each tenth of the allowed turns that has begun
_CONVLAB2_SLOTS = {
    "attraction": ("type", "name", "area"),
    "restaurant": ("food", "pricerange", "name", "area"),
    "train": ("leaveAt", "destination", "day", "arriveBy", "departure"),
    "hotel": ("name", "area", "parking", "pricerange", "stars", "internet", "type"),
    "taxi": ("leaveAt", "destination", "departure", "arriveBy"),
    "hospital": ("department",),
}
_CONVLAB2_SEARCHED = ("attraction", "restaurant", "train", "hotel")
_SMALLEST = {"train": (0, 1, 3, 6, 11, 41)}
"""Smallest number of entities of each bin of ConvLab-2's block, where it is not that of ``db``."""


class State(NamedTuple):
    """What an observation is made of."""

    heard: Sequence[DialogueAct]  # the user's last acts, as understood, delexicalized
    said: NDArray[Any]  # the agent's last action, a bit per act. Shape (number of system acts,)
    belief: BeliefState  # the belief
    progress: float  # share of the allowed turns that is over, below 1


Writer = Callable[[bytearray, State], None]


class ActVectorizer:
    """Turns a dialogue's state into bits.

    The blocks, in the order of `blocks`:

    - ``user_acts``: the user's last acts, as understood;
    - ``system_acts``: the agent's last acts;
    - ``belief``: known constraints and values of bookings, a bit per domain and slot;
    - ``requests``: open requests, a bit per domain and slot;
    - ``offered``, ``booked``: a bit per domain;
    - ``db``: number of entities that satisfy the constraints, a bit for none, 1, 2, 3, 4 and at least 5;
    - ``turn``: how much of the allowed turns is over, a bit per tenth.

    With ``convlab2`` for `blocks`, observations have the layout of ConvLab-2: the acts, 24 known constraints of
    MultiWOZ, a bit for each of 4 domains in which something is booked, 6 bits for the number of entities in each of
    these domains, with wider bins for trains, and a bit for the end of the dialogue. Bits of domains that the world
    lacks are 0.
    """

    def __init__(
        self,
        ontology: Ontology,
        database: Database,
        user_acts: ActVocabulary,
        system_acts: ActVocabulary,
        blocks: Sequence[str] | str = DEFAULT_BLOCKS,
    ) -> None:
        if isinstance(blocks, str):
            blocks = CONVLAB2_BLOCKS if blocks == "convlab2" else (blocks,)
        self._database = database
        self.user_acts, self.system_acts = user_acts, system_acts
        domains = ontology.domains.values()
        searched = [domain.name for domain in domains if not domain.generated]
        booked = [domain.name for domain in domains if domain.bookable]
        slots = {d.name: (*d.informable, *d.bookable) for d in domains}
        requests = {d.name: d.requestable for d in domains}
        known: dict[str, tuple[Sequence[str], Callable[[int], Writer]]] = {
            "user_acts": ([str(act) for act in user_acts.acts], self._user_acts),
            "system_acts": ([str(act) for act in system_acts.acts], self._system_acts),
            "belief": (_named(slots), lambda start: _belief(_positions(slots, start))),
            "requests": (_named(requests, "?"), lambda start: _requests(_positions(requests, start))),
            "offered": (list(ontology.domains), lambda start: _offered(list(ontology.domains), start)),
            "booked": (booked, lambda start: _booked(booked, start)),
            "db": (_counts(searched, {}), lambda start: self._db(searched, {}, start)),
            "turn": ([f"turn {10 * i} %" for i in range(N_TURN_BITS)], _turn),
            "convlab2_belief": (
                _named(_CONVLAB2_SLOTS),
                lambda start: _belief(_positions(_CONVLAB2_SLOTS, start)),
            ),
            "convlab2_booked": (list(_CONVLAB2_SEARCHED), lambda start: _booked(_CONVLAB2_SEARCHED, start)),
            "convlab2_db": (
                _counts(_CONVLAB2_SEARCHED, _SMALLEST),
                lambda start: self._db(_CONVLAB2_SEARCHED, _SMALLEST, start),
            ),
            "convlab2_over": (["the user has said goodbye"], _over),
        }
        for block in blocks:
            if block not in known:
                raise ConfigError(f"blocks: unknown block {block!r}{nearest_hint(block, [*known, 'convlab2'])}")
        if not blocks or len(set(blocks)) < len(blocks):
            raise ConfigError(f"blocks must be a list of different blocks, not {list(blocks)}")
        layout: list[str] = []
        self._writers: list[Writer] = []
        for block in blocks:
            names, writer = known[block]
            self._writers.append(writer(len(layout)))
            layout += [f"{block}: {name}" for name in names]
        self._layout = tuple(layout)

    def layout(self) -> tuple[str, ...]:
        """Name of every position of an observation."""
        return self._layout

    def observation(
        self, heard: Sequence[DialogueAct], said: NDArray[Any], belief: BeliefState, progress: float
    ) -> NDArray[np.int8]:
        """Bits of a state; see `State`. Shape (length of the layout,)."""
        bits = bytearray(len(self._layout))  # setting a byte takes a third of the time of setting an array's item
        state = State(heard, said, belief, progress)
        for write in self._writers:
            write(bits, state)
        return np.frombuffer(bits, np.int8)

    def _user_acts(self, start: int) -> Writer:
        positions = {act: start + i for i, act in enumerate(self.user_acts.acts)}

        def write(bits: bytearray, state: State) -> None:
            for act in state.heard:
                position = positions.get(act)
                if position is not None:
                    bits[position] = 1

        return write

    def _system_acts(self, start: int) -> Writer:
        end = start + len(self.system_acts)

        def write(bits: bytearray, state: State) -> None:
            bits[start:end] = state.said.astype(np.int8, copy=False).tobytes()

        return write

    def _db(self, domains: Sequence[str], smallest: Mapping[str, Sequence[int]], start: int) -> Writer:
        """Number of entities, in bins whose smallest numbers are 0 to 5 or those of `smallest`."""
        query = self._database.query
        bins = [(name, start + N_BINS * i, smallest.get(name, range(N_BINS))) for i, name in enumerate(domains)]
        n_all = {name: len(self._database.entities(name)) for name, *_ in bins if self._database.has(name)}

        def write(bits: bytearray, state: State) -> None:
            for name, first, limits in bins:
                if name in n_all:
                    constraints = state.belief.domains[name].constraints
                    n_found = len(query(name, constraints)) if constraints else n_all[name]
                    bits[first + bisect_right(limits, n_found) - 1] = 1

        return write


def _named(slots: Mapping[str, Iterable[str]], suffix: str = "") -> list[str]:
    return [f"{name}-{slot}{suffix}" for name, found in slots.items() for slot in found]


def _counts(domains: Sequence[str], smallest: Mapping[str, Sequence[int]]) -> list[str]:
    names = []
    for name in domains:
        limits = smallest.get(name, range(N_BINS))
        ends = [str(low) if high == low + 1 else f"{low} to {high - 1}" for low, high in pairwise(limits)]
        names += [f"{name}: {count}" for count in (*ends, f"{limits[-1]} or more")]
    return names


def _positions(slots: Mapping[str, Iterable[str]], start: int) -> dict[str, dict[str, int]]:
    """Position of each slot by domain."""
    number = itertools.count(start)
    return {name: {slot: next(number) for slot in found} for name, found in slots.items()}


def _belief(positions: Mapping[str, Mapping[str, int]]) -> Writer:
    def write(bits: bytearray, state: State) -> None:
        for name, about in state.belief.domains.items():
            if about.constraints or about.booking:
                found = positions.get(name, {})
                for slot in (*about.constraints, *about.booking):
                    if slot in found:
                        bits[found[slot]] = 1

    return write


def _requests(positions: Mapping[str, Mapping[str, int]]) -> Writer:
    def write(bits: bytearray, state: State) -> None:
        for name, about in state.belief.domains.items():
            for slot in about.requested:
                if slot in positions[name]:
                    bits[positions[name][slot]] = 1

    return write


def _offered(domains: Sequence[str], start: int) -> Writer:
    def write(bits: bytearray, state: State) -> None:
        for i, name in enumerate(domains, start):
            if state.belief.domains[name].offered:
                bits[i] = 1

    return write


def _booked(domains: Sequence[str], start: int) -> Writer:
    def write(bits: bytearray, state: State) -> None:
        for i, name in enumerate(domains, start):
            about = state.belief.domains.get(name)
            if about is not None and about.reference:
                bits[i] = 1

    return write


def _turn(start: int) -> Writer:
    ones = b"\1" * N_TURN_BITS

    def write(bits: bytearray, state: State) -> None:
        n = int(state.progress * N_TURN_BITS) + 1
        bits[start : start + n] = ones[:n]

    return write


def _over(start: int) -> Writer:
    def write(bits: bytearray, state: State) -> None:
        bits[start] = any(act.intent == BYE for act in state.heard)

    return write
