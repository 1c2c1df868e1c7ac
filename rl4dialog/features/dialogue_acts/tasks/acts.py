"""Dialogue acts: what an utterance does, without its words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl4dialog.core.errors import DataError

INFORM, REQUEST, NO_OFFER, BOOK, NO_BOOK = "inform", "request", "nooffer", "book", "nobook"
RECOMMEND, SELECT, OFFER_BOOK, OFFER_BOOKED = "recommend", "select", "offerbook", "offerbooked"
BYE, THANK, GREET, WELCOME, REQ_MORE = "bye", "thank", "greet", "welcome", "reqmore"
GENERAL = "general"  # domain of acts such as ``bye``, which belong to no other
BOOKING = "booking"  # domain of an agent's acts about the booking of whatever is being talked about, as in MultiWOZ
DONT_CARE = "dontcare"  # value of a constraint that admits every value
NAMING = frozenset({INFORM, RECOMMEND, SELECT, OFFER_BOOK})
"""Intents of acts whose values describe an entity of the database."""
BOOKS = frozenset({BOOK, OFFER_BOOKED})  # intents of acts that make a booking
TELLING = NAMING | BOOKS  # intents of acts that tell the user a value


class DialogueAct(NamedTuple):
    """One act of an utterance."""

    intent: str  # what is done, such as ``inform``
    domain: str  # what it is about, such as ``restaurant``
    slot: str = ""  # the attribute, such as ``food``; empty if there is none
    # Empty for requests, and if there is none. In a delexicalized act, ``"1"`` stands for the first value that the
    # utterance has for this slot, ``"2"`` for the second, and so on.
    value: str = ""

    def __str__(self) -> str:
        inside = f"{self.slot}={self.value}" if self.value else self.slot
        return f"{self.domain}-{self.intent}({inside})"


def delexicalized(acts: Iterable[DialogueAct]) -> list[DialogueAct]:
    """Replace values by their number among the values of the same intent, domain and slot.

    Requests and acts without a value stay as they are.
    """
    seen: dict[Any, list[str]] = {}
    return list(
        dict.fromkeys(act._replace(value=numbered(act.value, act[:3], seen)) if act.value else act for act in acts)
    )


def numbered(value: str, key: Any, seen: dict[Any, list[str]]) -> str:
    """Number of a value among those that were `seen` for a key, to which it is added."""
    values = seen.setdefault(key, [])
    if value not in values:
        values.append(value)
    return str(values.index(value) + 1)


class ActVocabulary:
    """Delexicalized acts, numbered."""

    def __init__(self, acts: Iterable[DialogueAct]) -> None:
        self.acts: tuple[DialogueAct, ...] = tuple(acts)
        self._number = {act: i for i, act in enumerate(self.acts)}
        if not self.acts:
            raise DataError("the vocabulary of dialogue acts is empty; lower min_count or use a larger corpus")

    def __len__(self) -> int:
        return len(self.acts)

    def __contains__(self, act: DialogueAct) -> bool:
        return act in self._number

    def encode(self, acts: Iterable[DialogueAct]) -> NDArray[np.int8]:
        """A bit per act, shape (number of acts,): 1 for these delexicalized acts. Unknown ones are left out."""
        bits = np.zeros(len(self.acts), np.int8)
        bits[[self._number[act] for act in acts if act in self._number]] = 1
        return bits

    def decode(self, bits: NDArray[Any]) -> list[DialogueAct]:
        """The acts whose bit is not 0."""
        return [self.acts[i] for i in bits.nonzero()[0].tolist()]


def counted_vocabulary(turns: Iterable[Collection[DialogueAct]], min_count: int = 1) -> ActVocabulary:
    """All acts that occur in at least `min_count` turns, in alphabetical order."""
    counts = Counter(act for acts in turns for act in delexicalized(acts))
    return ActVocabulary(sorted(act for act, count in counts.items() if count >= min_count))


def composite_acts(
    turns: Iterable[Collection[DialogueAct]], vocabulary: ActVocabulary, size: int
) -> list[tuple[DialogueAct, ...]]:
    """The most frequent combinations of known acts in an utterance, most frequent first, without silence."""
    said = (tuple(sorted(act for act in delexicalized(acts) if act in vocabulary)) for acts in turns)
    counts = Counter(filter(None, said))
    return sorted(counts, key=lambda acts: (-counts[acts], acts))[:size]
