"""The rules: guesses, their colours and their rewards; lists of words, and the colours of their words as arrays.

The agent has six turns. Its utterance is a guess, and the partner answers with one colour per letter: green (``g``) at
its place in the word, yellow (``y``) elsewhere in the word, black (``b``) not in it. Each wrong guess costs 1.

As arrays, the colours of a guess are a *pattern*: a number from 0 to 242, whose five digits to base 3 are the places in
``COLOURS``. Notation: V words, n games, t guesses so far.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from rl4dialog.core.errors import DataError, shown
from rl4dialog.data.rows import read_lines

N_LETTERS = 5
MAX_TURNS = 6
# NO_WORD, the answer to anything that is not a guess, occurs in no game of a scripted player. All its letters occur in
# the opening, so that a tokenizer of characters that is trained on such games knows them.
OPENING, NO_WORD = "new word", "no word"
BLACK, YELLOW, GREEN = COLOURS = "byg"
SOLVED = GREEN * N_LETTERS

Letters = Literal["plain", "spaced"]
"""How five letters are written: ``crane``, or ``c r a n e`` for the tokenizers of pretrained models."""
Duplicates = Literal["simple", "official"]  # how repeated letters are coloured; see :func:`colours`

_WRITTEN = {"plain": re.compile(rf"[a-z]{{{N_LETTERS}}}"), "spaced": re.compile(rf"[a-z](?: [a-z]){{{N_LETTERS - 1}}}")}


def written(letters: str, style: Letters) -> str:
    return " ".join(letters) if style == "spaced" else letters


def read(text: str, style: Letters) -> str | None:
    """The word of a guess; ``None`` unless the text is five letters a to z in this style, and whitespace around."""
    text = text.strip()
    return text.replace(" ", "") if _WRITTEN[style].fullmatch(text) else None


def read_colours(text: str, style: Letters) -> str | None:
    """The colours of an answer of the partner; ``None`` if it is something else, such as ``NO_WORD``."""
    found = read(text, style)
    return found if found is not None and set(found) <= set(COLOURS) else None


def colours(guess: str, word: str, duplicates: Duplicates = "simple") -> str:
    """Colour a guess.

    ``simple``, as in ILQL: a letter at the wrong place is yellow if it occurs in the word at all. ``official``, as in
    the newspaper's game: of a repeated letter, as many are coloured as the word has, green first, then from the left.
    """
    if duplicates == "simple":
        return "".join(GREEN if a == b else YELLOW if a in word else BLACK for a, b in zip(guess, word, strict=True))
    left = Counter(b for a, b in zip(guess, word, strict=True) if a != b)
    found = ""
    for a, b in zip(guess, word, strict=True):
        is_yellow = a != b and left[a] > 0
        left[a] -= is_yellow
        found += GREEN if a == b else YELLOW if is_yellow else BLACK
    return found


def reward(guess: str | None, word: str) -> float:
    """Reward of an utterance: 0 for the word, -1 for any other guess and for what is not a guess (``None``)."""
    return 0.0 if guess == word else -1.0


ListName = Literal[40, 240]
"""The packaged lists, by their number of words; all words are common, and the short list is part of the long one."""


def load_words(word_list: ListName | None = None, path: str | None = None) -> tuple[str, ...]:
    """Load a packaged list of words, or a text file with one word per line; in the order of the list."""
    if (word_list is None) == (path is None):
        which = "neither" if path is None else "both"
        raise DataError(f"words are those of word_list, 40 or 240, or of the file path; {which} of them is given")
    file = path or f"words_{word_list}.txt"
    first_line: dict[str, int] = {}
    for number, word in enumerate(read_lines(Path(path).expanduser() if path else Path(__file__).with_name(file)), 1):
        if read(word, "plain") != word:
            rule = f"a line must be {N_LETTERS} lower-case letters a to z"
            raise DataError(f"{file}:{number}: {shown(word)} is not a word of the game; {rule}")
        if word in first_line:
            raise DataError(f"{file}:{number}: {word!r} is also in line {first_line[word]}; remove one of them")
        first_line[word] = number
    if len(first_line) < 2:
        problem = "there is only one word" if first_line else "there are no words"
        raise DataError(f"{file}: {problem}; write a word of {N_LETTERS} letters on each line")
    return tuple(first_line)


N_PATTERNS = len(COLOURS) ** N_LETTERS
PATTERN_TEXTS = tuple(
    "".join(COLOURS[pattern // len(COLOURS) ** place % len(COLOURS)] for place in reversed(range(N_LETTERS)))
    for pattern in range(N_PATTERNS)
)
_PATTERNS = {text: pattern for pattern, text in enumerate(PATTERN_TEXTS)}
_GUESSES_AT_ONCE = 256
_MAX_REMEMBERED = 100_000  # of some hundred bytes each
_TOLERANCE = 1e-9  # of equal sums of logarithms, which are added in another order


def pattern_matrix(words: Sequence[str], duplicates: Duplicates = "simple") -> np.ndarray:
    """Colour every word of a list as a guess of every other one; see :func:`colours`."""
    letters = np.array([[ord(letter) for letter in word] for word in words], dtype=np.uint8)  # [V, 5]
    parts = [letters[start : start + _GUESSES_AT_ONCE] for start in range(0, len(words), _GUESSES_AT_ONCE)]
    return np.concatenate([_patterns(guesses, letters, duplicates) for guesses in parts])


def _patterns(guesses: np.ndarray, words: np.ndarray, duplicates: Duplicates) -> np.ndarray:
    """Patterns of some guesses (g, 5) for all words (V, 5). Shape (g, V)."""
    places = range(N_LETTERS)
    green = [guesses[:, None, i] == words[None, :, i] for i in places]
    patterns = np.zeros((len(guesses), len(words)), dtype=np.uint8)
    for i in places:
        same = [guesses[:, None, i] == words[None, :, j] for j in places]
        if duplicates == "simple":
            yellow = np.logical_or.reduce(same)
        else:
            # Letters of the word that are not green there, less those that earlier places of the guess take.
            left = np.sum([one & ~green[j] for j, one in enumerate(same)], axis=0)
            taken = [(guesses[:, None, i] == guesses[:, None, j]) & ~green[j] for j in range(i)]
            yellow = left > (np.sum(taken, axis=0) if taken else 0)
        patterns = len(COLOURS) * patterns + np.where(green[i], 2, yellow).astype(np.uint8)
    return patterns


class Lexicon:
    """The words of a game, all different, with the pattern of each one as a guess of each other one."""

    def __init__(self, words: Sequence[str], duplicates: Duplicates = "simple") -> None:
        self.words, self.duplicates = tuple(words), duplicates
        self.index = {word: i for i, word in enumerate(self.words)}
        self.patterns = pattern_matrix(self.words, duplicates)
        self._best: dict[bytes, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.words)

    def consistent(self, answered: Iterable[tuple[str, str]]) -> np.ndarray:
        """The words that agree with all colours of guesses, which need not be words of the list. Shape (V,)."""
        found = np.ones(len(self), dtype=bool)
        for guess, colour in answered:
            if guess in self.index:
                found &= self.patterns[self.index[guess]] == _PATTERNS[colour]
            else:
                found &= [colours(guess, word, self.duplicates) == colour for word in self.words]
        return found

    def most_informative(self, consistent: np.ndarray) -> np.ndarray:
        """Find the most informative guesses among the consistent words.

        With all consistent words equally likely, the expected information gain of a guess is the entropy of its colours

            H = log k - 1/k sum_c k_c log k_c

        where k_c of the k words have colours c.
        """
        key = np.packbits(consistent).tobytes()
        best = self._best.get(key)
        if best is None:
            words = np.flatnonzero(consistent)
            rows = self.patterns[np.ix_(words, words)] + N_PATTERNS * np.arange(len(words))[:, None]
            counts = np.bincount(rows.ravel(), minlength=N_PATTERNS * len(words)).reshape(len(words), N_PATTERNS)
            remaining = np.sum(counts * np.log(np.maximum(counts, 1)), axis=1)
            best = words[remaining <= remaining.min() + _TOLERANCE]
            if len(self._best) >= _MAX_REMEMBERED:
                self._best.clear()
            self._best[key] = best
        return best
