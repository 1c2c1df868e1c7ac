"""The rules: guesses, their colours and their rewards.

The agent has six turns. Its utterance is a guess, and the partner answers with one colour per letter: green (``g``) at
its place in the word, yellow (``y``) elsewhere in the word, black (``b``) not in it. Each guess that is not the word
costs 1.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal

N_LETTERS = 5
MAX_TURNS = 6
# NO_WORD, the answer to anything that is not a guess, occurs in no game of a scripted player. All its letters occur in
# the opening, so that a tokenizer of characters that is trained on such games knows them.
OPENING, NO_WORD = "new word", "no word"
BLACK, YELLOW, GREEN = COLOURS = "byg"
"""The colours; their places are the digits of a pattern (`rl4dialog.tasks.wordle.lexicon`)."""
SOLVED = GREEN * N_LETTERS

Letters = Literal["plain", "spaced"]
"""How five letters are written: ``crane``, or ``c r a n e`` for the tokenizers of pretrained models."""
Duplicates = Literal["simple", "official"]
"""How repeated letters are coloured; see :func:`colours`."""

_WRITTEN = {
    "plain": re.compile(rf"[a-z]{{{N_LETTERS}}}"),
    "spaced": re.compile(rf"[a-z](?: [a-z]){{{N_LETTERS - 1}}}"),
}


def written(letters: str, style: Letters) -> str:
    """Write a word or colours."""
    return " ".join(letters) if style == "spaced" else letters


def read(text: str, style: Letters) -> str | None:
    """Read a guess.

    Returns:
        The word; ``None`` unless the text is five lower-case letters a to z, written in this style, and nothing else.
        Whitespace around them does not matter.
    """
    text = text.strip()
    return text.replace(" ", "") if _WRITTEN[style].fullmatch(text) else None


def read_colours(text: str, style: Letters) -> str | None:
    """Read an answer of the partner.

    Returns:
        The colours; ``None`` if the text is something else, such as ``NO_WORD``.
    """
    found = read(text, style)
    return found if found is not None and set(found) <= set(COLOURS) else None


def colours(guess: str, word: str, duplicates: Duplicates = "simple") -> str:
    """Colour a guess.

    Args:
        guess: Five letters.
        word: The hidden word.
        duplicates: ``simple``, as in ILQL: a letter at the wrong place is yellow if it occurs in the word at all.
            ``official``, as in the newspaper's game: of a repeated letter, as many are coloured as the word has, green
            ones first, then yellow ones from the left.

    Returns:
        One of ``COLOURS`` per letter.
    """
    if duplicates == "simple":
        return "".join(GREEN if a == b else YELLOW if a in word else BLACK for a, b in zip(guess, word, strict=True))
    left = Counter(b for a, b in zip(guess, word, strict=True) if a != b)
    found = []
    for a, b in zip(guess, word, strict=True):
        if a == b:
            found.append(GREEN)
        elif left[a] > 0:
            left[a] -= 1
            found.append(YELLOW)
        else:
            found.append(BLACK)
    return "".join(found)


def reward(guess: str | None, word: str) -> float:
    """Reward of an utterance: 0 for the word, -1 for any other guess and for what is not a guess (``None``)."""
    return 0.0 if guess == word else -1.0
