"""Observations and actions of a policy: bits for what was said, what is believed, and what the database has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.errors import ConfigError, nearest_hint
from rl4dialog.tasks.dialogue_acts.acts import ActVocabulary, DialogueAct
from rl4dialog.tasks.dialogue_acts.belief import BeliefState
from rl4dialog.tasks.dialogue_acts.database import Database
from rl4dialog.tasks.dialogue_acts.ontology import Ontology

DEFAULT_BLOCKS = ("user_acts", "system_acts", "belief", "requests", "offered", "booked", "db", "turn")
N_BINS = 6
"""Bits of the block ``db`` per domain: none, 1, 2, 3, 4 and at least 5 entities."""
N_TURN_BITS = 10
"""Bits of the block ``turn``: one for each tenth of the allowed turns that has begun."""


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

    Args:
        ontology: The domains.
        database: Their entities.
        user_acts: Vocabulary of the user's delexicalized acts.
        system_acts: Vocabulary of the agent's delexicalized acts.
        blocks: Blocks of an observation.

    Raises:
        ConfigError: If a block is unknown, is given twice, or there is none.
    """

    def __init__(
        self,
        ontology: Ontology,
        database: Database,
        user_acts: ActVocabulary,
        system_acts: ActVocabulary,
        blocks: Sequence[str] = DEFAULT_BLOCKS,
    ) -> None:
        self._ontology, self._database = ontology, database
        self.user_acts, self.system_acts = user_acts, system_acts
        domains = ontology.domains.values()
        searched = [domain.name for domain in domains if not domain.generated]
        booked = [domain.name for domain in domains if domain.bookable]
        self._slots = [(d.name, slot) for d in domains for slot in (*d.informable, *d.bookable)]
        self._requests = [(d.name, slot) for d in domains for slot in d.requestable]
        self._searched, self._with_bookings = searched, booked
        names: dict[str, list[str]] = {
            "user_acts": [str(act) for act in user_acts.acts],
            "system_acts": [str(act) for act in system_acts.acts],
            "belief": [f"{name}-{slot}" for name, slot in self._slots],
            "requests": [f"{name}-{slot}?" for name, slot in self._requests],
            "offered": list(ontology.domains),
            "booked": booked,
            "db": [f"{name}: {count}" for name in searched for count in ("0", "1", "2", "3", "4", "5 or more")],
            "turn": [f"turn {10 * i} %" for i in range(N_TURN_BITS)],
        }
        for block in blocks:
            if block not in names:
                raise ConfigError(f"blocks: unknown block {block!r}{nearest_hint(block, names)}")
        if not blocks or len(set(blocks)) < len(blocks):
            raise ConfigError(f"blocks must be a list of different blocks, not {list(blocks)}")
        self._layout = tuple(f"{block}: {name}" for block in blocks for name in names[block])
        writers: dict[str, Callable[[NDArray[np.int8], int, BeliefState, float], None]] = {
            "belief": self._write_belief,
            "requests": self._write_requests,
            "offered": self._write_offered,
            "booked": self._write_booked,
            "db": self._write_db,
            "turn": self._write_turn,
        }
        starts = np.cumsum([0, *(len(names[block]) for block in blocks)])
        self._start = {block: int(start) for block, start in zip(blocks, starts, strict=False)}
        self._writers = [(writers[block], self._start[block]) for block in blocks if block in writers]

    def layout(self) -> tuple[str, ...]:
        """Name of every position of an observation."""
        return self._layout

    def observation(
        self, heard: Sequence[DialogueAct], said: NDArray[Any], belief: BeliefState, progress: float
    ) -> NDArray[np.int8]:
        """Bits of a state.

        Args:
            heard: The user's last acts, as understood, delexicalized.
            said: The agent's last action, a bit per act. Shape (number of system acts,).
            belief: The belief.
            progress: Share of the allowed turns that is over, below 1.

        Returns:
            Shape (length of the layout,).
        """
        bits = np.zeros(len(self._layout), np.int8)
        if "user_acts" in self._start:
            start = self._start["user_acts"]
            for act in heard:
                if act in self.user_acts:
                    bits[start + self.user_acts.number(act)] = 1
        if "system_acts" in self._start:
            start = self._start["system_acts"]
            bits[start : start + len(self.system_acts)] = said
        for write, start in self._writers:
            write(bits, start, belief, progress)
        return bits

    def _write_belief(self, bits: NDArray[np.int8], start: int, belief: BeliefState, progress: float) -> None:
        domains = belief.domains
        for i, (name, slot) in enumerate(self._slots, start):
            about = domains[name]
            if slot in about.constraints or slot in about.booking:
                bits[i] = 1

    def _write_requests(self, bits: NDArray[np.int8], start: int, belief: BeliefState, progress: float) -> None:
        domains = belief.domains
        for i, (name, slot) in enumerate(self._requests, start):
            if slot in domains[name].requested:
                bits[i] = 1

    def _write_offered(self, bits: NDArray[np.int8], start: int, belief: BeliefState, progress: float) -> None:
        for i, about in enumerate(belief.domains.values(), start):
            bits[i] = bool(about.offered)

    def _write_booked(self, bits: NDArray[np.int8], start: int, belief: BeliefState, progress: float) -> None:
        for i, name in enumerate(self._with_bookings, start):
            bits[i] = bool(belief.domains[name].reference)

    def _write_db(self, bits: NDArray[np.int8], start: int, belief: BeliefState, progress: float) -> None:
        for i, name in enumerate(self._searched):
            n_found = len(self._database.query(name, belief.domains[name].constraints))
            bits[start + N_BINS * i + min(n_found, N_BINS - 1)] = 1

    def _write_turn(self, bits: NDArray[np.int8], start: int, belief: BeliefState, progress: float) -> None:
        bits[start : start + int(progress * N_TURN_BITS) + 1] = 1
