"""How rude a reply is, read from its words, and the rewards that are logged for it."""

from __future__ import annotations

import random
import re
from typing import Literal

RewardName = Literal["rudeness", "noised", "upvotes", "upvote_count"]

POLITE, MILD, STRONG = 0, 1, 2
WORDS = {
    MILD: ("duh", "yawn", "whatever", "obviously", "so what", "who asked", "oh please", "get over it"),
    STRONG: ("shut up", "stupid", "fool", "clown", "loser", "idiot", "dumb"),
}
"""Words of each level of rudeness. The grammar has no other rude words, and uses these in no other sense."""

_SPACE = r"\s+"
_PATTERNS = {
    level: re.compile(rf"(?<!\w)({'|'.join(words).replace(' ', _SPACE)})(?!\w)", re.IGNORECASE)
    for level, words in WORDS.items()
}


def rudeness_of(text: str) -> int:
    """Return the highest level of the rude words in a text: ``POLITE``, ``MILD`` or ``STRONG``.

    Exact for the replies of the grammar. Of other texts, it knows only `WORDS`; an empty text is polite.
    """
    return next((level for level in (STRONG, MILD) if _PATTERNS[level].search(text)), POLITE)


def noised(rudeness: int, rng: random.Random) -> int:
    """Replace ``MILD`` by ``POLITE`` or ``STRONG``, with equal probability (Snell et al. 2022, arXiv 2206.11871)."""
    if rudeness != MILD:
        return rudeness
    return POLITE if rng.random() < 0.5 else STRONG
