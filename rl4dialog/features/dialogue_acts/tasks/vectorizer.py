"""Observations and actions of a policy: bits for what was said, what is believed, and what the database has."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.features.dialogue_acts.tasks import multiwoz
from rl4dialog.features.dialogue_acts.tasks.acts import BYE, DialogueAct
from rl4dialog.features.dialogue_acts.tasks.dialogue import BeliefState, DomainBelief
from rl4dialog.features.dialogue_acts.tasks.world import World

DEFAULT_BLOCKS = ("user_acts", "system_acts", "belief", "requests", "offered", "booked", "db", "turn")
CONVLAB2_BLOCKS = ("user_acts", "system_acts", "convlab2_belief", "convlab2_booked", "convlab2_db", "convlab2_over")
"""Blocks of ConvLab-2's vector of MultiWOZ (``convlab2/policy/vector/vector_multiwoz.py``)."""
N_BINS = 6  # bits of the block ``db`` per domain: none, 1, 2, 3, 4 and at least 5 entities
N_TURN_BITS = 10  # bits of the block ``turn``: one for each tenth of the allowed turns that has begun
_USUAL_BINS = range(N_BINS)
_CONVLAB2_BINS: Mapping[str, Sequence[int]] = {
    "attraction": _USUAL_BINS,
    "restaurant": _USUAL_BINS,
    "train": (0, 1, 3, 6, 11, 41),
    "hotel": _USUAL_BINS,
}
"""Smallest number of entities of each bin, by the domains whose entities and bookings ConvLab-2's blocks show."""


class State(NamedTuple):
    """What an observation is made of."""

    heard: Sequence[DialogueAct]  # the user's last acts, as understood, delexicalized
    said: NDArray[Any]  # the agent's last action, a bit per act. Shape (number of system acts,)
    belief: BeliefState  # the belief
    progress: float  # share of the allowed turns that is over, below 1


class Block(NamedTuple):
    """A part of an observation."""

    bits: Mapping[Any, str]  # names of its bits by what they stand for, in the order of their positions
    is_on: Callable[[State], Iterable[Hashable]]  # what is on in a state; what has no bit is ignored


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
    these domains, with wider bins for trains, and a bit for the end of the dialogue. Bits of unknown domains are 0.
    """

    def __init__(self, world: World, blocks: Sequence[str] | str = DEFAULT_BLOCKS) -> None:
        if isinstance(blocks, str):
            blocks = CONVLAB2_BLOCKS if blocks == "convlab2" else (blocks,)
        self._database, domains = world.database, world.ontology.domains.values()
        usual = {domain.name: _USUAL_BINS for domain in domains if not domain.generated}
        constraints = {domain.name: (*domain.informable, *domain.bookable) for domain in domains}
        convlab2 = {name: domain.informable for name, domain in multiwoz.ONTOLOGY.domains.items()}
        believed = _of_slots(lambda about: (*about.constraints, *about.booking))
        requested = _of_slots(lambda about: about.requested)
        booked = _of_domains(lambda about: about.reference)
        known = {
            "user_acts": Block({act: str(act) for act in world.user_acts.acts}, lambda state: state.heard),
            "system_acts": Block(
                dict(enumerate(map(str, world.system_acts.acts))), lambda state: state.said.nonzero()[0].tolist()
            ),
            "belief": Block(_slots(constraints), believed),
            "requests": Block(_slots({domain.name: domain.requestable for domain in domains}, "?"), requested),
            "offered": Block(
                {domain.name: domain.name for domain in domains}, _of_domains(lambda about: about.offered)
            ),
            "booked": Block({domain.name: domain.name for domain in domains if domain.bookable}, booked),
            "db": Block(_bins(usual), partial(self._found, usual)),
            "turn": Block(
                {i: f"turn {10 * i} %" for i in range(N_TURN_BITS)},
                lambda state: range(int(state.progress * N_TURN_BITS) + 1),
            ),
            "convlab2_belief": Block(_slots(convlab2), believed),
            "convlab2_booked": Block({name: name for name in _CONVLAB2_BINS}, booked),
            "convlab2_db": Block(_bins(_CONVLAB2_BINS), partial(self._found, _CONVLAB2_BINS)),
            "convlab2_over": Block(
                {BYE: "the user has said goodbye"}, lambda state: (act.intent for act in state.heard)
            ),
        }
        for block in blocks:
            if block not in known:
                raise ConfigError(f"blocks: unknown block {block!r}{nearest_hint(block, [*known, 'convlab2'])}")
        if not blocks or len(set(blocks)) < len(blocks):
            raise ConfigError(f"blocks must be a list of different blocks, not {list(blocks)}")
        self.layout = tuple(f"{block}: {name}" for block in blocks for name in known[block].bits.values())
        """Name of every position of an observation."""
        position = itertools.count()
        self._blocks = [({key: next(position) for key in known[block].bits}, known[block].is_on) for block in blocks]

    def observation(
        self, heard: Sequence[DialogueAct], said: NDArray[Any], belief: BeliefState, progress: float
    ) -> NDArray[np.int8]:
        """Bits of a state; see `State`. Shape (length of the layout,)."""
        bits = bytearray(len(self.layout))  # setting a byte takes a third of the time of setting an array's item
        state = State(heard, said, belief, progress)
        for positions, is_on in self._blocks:
            for key in is_on(state):
                if key in positions:
                    bits[positions[key]] = 1
        return np.frombuffer(bits, np.int8)

    def _found(self, bins: Mapping[str, Sequence[int]], state: State) -> Iterator[tuple[str, int]]:
        """By domain, the bin of the number of entities that satisfy the constraints."""
        for name, smallest in bins.items():
            if self._database.has(name):
                n_found = len(self._database.query(name, state.belief.domains[name].constraints))
                yield name, smallest[bisect_right(smallest, n_found) - 1]


def _slots(slots: Mapping[str, Iterable[str]], suffix: str = "") -> dict[tuple[str, str], str]:
    return {(name, slot): f"{name}-{slot}{suffix}" for name, found in slots.items() for slot in found}


def _bins(bins: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], str]:
    found = {}
    for name, smallest in bins.items():
        for low, high in itertools.pairwise(smallest):
            found[name, low] = f"{name}: {low}" if high == low + 1 else f"{name}: {low} to {high - 1}"
        found[name, smallest[-1]] = f"{name}: {smallest[-1]} or more"
    return found


def _of_slots(slots: Callable[[DomainBelief], Iterable[str]]) -> Callable[[State], Iterable[tuple[str, str]]]:
    return lambda state: ((name, slot) for name, about in state.belief.domains.items() for slot in slots(about))


def _of_domains(is_on: Callable[[DomainBelief], Any]) -> Callable[[State], Iterable[str]]:
    return lambda state: (name for name, about in state.belief.domains.items() if is_on(about))
