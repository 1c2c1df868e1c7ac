"""The personas among which the one of a speaker is to be found: its own, and others that are drawn."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.seeding import derive_seed
from rl4dialog.core.types import AGENT, PARTNER, Dialogue
from rl4dialog.metrics.checks import meta_data_there

Persona = tuple[str, ...]
Side = Literal["partner", "agent"]
SPEAKERS = {"partner": PARTNER, "agent": AGENT}
PERSONA_KEYS = {"partner": "partner_persona", "agent": "persona"}
"""Keys of the meta data with the facts about each side."""


class PersonaCandidates:
    """Draws the candidates of a conversation, which depend only on the seed and the sample.

    Args:
        personas: Returns the personas of the run's train split, given a key of the meta data.
        side: Whose persona is to be found.
        n_distractors: Number of other personas.
        hard: Number of facts that each of them shares with the true persona. They replace the facts of a drawn persona
            with which they have most words in common, so that no one has two pets; what is left is cut to the length
            of the true persona. With 0, personas are left as they are, and can have facts in common by chance.
        seed: Random seed.
        who: What uses them, for messages.
    """

    def __init__(
        self,
        personas: Callable[[str], Sequence[Persona]],
        side: Side,
        n_distractors: int,
        hard: int,
        seed: int,
        who: str,
    ) -> None:
        self._key = PERSONA_KEYS[side]
        self._personas = list({frozenset(persona): persona for persona in personas(self._key)}.values())
        self._n_distractors, self._hard, self._seed, self._who = n_distractors, hard, seed, who
        if not self._personas:
            raise DataError(
                f"{who} needs samples with a list of sentences in meta_data[{self._key!r}], which the datapools "
                f"get_acquainted and persona_pairs provide, and persona_chat from files with both personas"
            )
        if len(self._personas) <= n_distractors:
            raise ConfigError(
                f"{who}: n_distractors: {n_distractors} needs at least {n_distractors + 1} different personas; the "
                f"train split has {len(self._personas)}"
            )
        shortest = min(map(len, self._personas))
        if hard >= shortest:
            raise ConfigError(
                f"{who}: hard: {hard} facts in common leave no difference from a persona of {shortest} facts; lower it"
            )

    @property
    def facts(self) -> list[str]:
        """All facts of the train split, each once."""
        return list(dict.fromkeys(fact for persona in self._personas for fact in persona))

    def __call__(self, dialogue: Dialogue) -> list[Persona]:
        """Return the true persona of a conversation, followed by the distractors."""
        found = dialogue.meta_data.get(self._key)
        if not isinstance(found, list | tuple) or not found:
            raise DataError(
                f"{self._who} needs a list of sentences in meta_data[{self._key!r}]; sample {dialogue.id!r} has "
                f"{meta_data_there(dialogue.meta_data, self._key)}"
            )
        true = tuple(found)
        rng = random.Random(derive_seed(self._seed, "persona_ranking", dialogue.id))
        chosen = {frozenset(true): true}
        for i in _random_order(len(self._personas), rng):
            other = self._distractor(true, self._personas[i], rng)
            if other is not None and set(other) - set(true):
                chosen.setdefault(frozenset(other), other)
            if len(chosen) > self._n_distractors:
                return list(chosen.values())
        raise DataError(
            f"{self._who}: only {len(chosen) - 1} personas differ from that of sample {dialogue.id!r}; lower "
            f"n_distractors: {self._n_distractors}"
        )

    def _distractor(self, true: Persona, drawn: Persona, rng: random.Random) -> Persona | None:
        if not self._hard:
            return drawn
        shared = [true[i] for i in sorted([*_random_order(len(true), rng)][: self._hard])]
        own = [fact for fact in drawn if fact not in true]
        for fact in shared[: len(own)]:
            own.remove(max(own, key=lambda other: len(_words(other) & _words(fact))))
        n_own = len(true) - self._hard
        return (*shared, *own[:n_own]) if len(own) >= n_own else None


def _words(text: str) -> set[str]:
    return set(text.lower().split())


def _random_order(n: int, rng: random.Random) -> Iterator[int]:
    """Yield the numbers below n in random order; the first ones cost no more for a large n (Fisher and Yates)."""
    moved: dict[int, int] = {}
    for i in range(n):
        # random() alone has the same sequence in all versions of Python.
        j = i + int(rng.random() * (n - i))
        yield moved.get(j, j)
        moved[j] = moved.get(i, i)
