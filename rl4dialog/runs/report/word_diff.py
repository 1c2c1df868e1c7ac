"""Which words of a text another text does not have, in order."""

from __future__ import annotations

import re
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
    words = _WORDS.findall(text)
    matcher = SequenceMatcher(None, *([word.strip() for word in each] for each in (words, _WORDS.findall(other))), False)
    blocks = [block for block in matcher.get_matching_blocks() if block.size]
    if not blocks:
        return [Piece(text, False)] if text else []
    pieces, start = [], 0
    for block in blocks:
        pieces += [("".join(words[start : block.a]), True), ("".join(words[block.a : block.a + block.size]), False)]
        start = block.a + block.size
    pieces.append(("".join(words[start:]), True))
    return [Piece(*piece) for piece in pieces if piece[0]]
