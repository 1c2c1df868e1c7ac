"""Which words of a text another text does not have, in order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

_WORDS = re.compile(r"\s*\S+|\s+$")


class Piece(NamedTuple):
    """A part of a text, and whether the other text lacks it."""

    text: str
    is_new: bool


def word_diff(text: str, other: str) -> list[Piece]:
    """Split a text into pieces that another text shares, and pieces that it lacks.

    Nothing is marked if the texts have no words in common, where marks would say nothing.

    Args:
        text: The text to split; the pieces add up to it.
        other: The text to compare with.
    """
    words, bare = _WORDS.findall(text), text.split()
    blocks = SequenceMatcher(None, bare, other.split(), autojunk=False).get_matching_blocks()[:-1]
    if not blocks:
        return [Piece(text, False)] if text else []
    return [piece for piece in _pieces(words, [(block.a, block.a + block.size) for block in blocks]) if piece.text]


def _pieces(words: list[str], shared: list[tuple[int, int]]) -> Iterator[Piece]:
    start = 0
    for first, end in [*shared, (len(words), len(words))]:
        new = "".join(words[start:first])
        n_spaces = len(new) - len(new.lstrip())  # space before new words is not marked
        yield Piece(new[:n_spaces], False)
        yield Piece(new[n_spaces:], True)
        yield Piece("".join(words[first:end]), False)
        start = end
