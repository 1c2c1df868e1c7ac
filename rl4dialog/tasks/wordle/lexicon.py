"""A list of words with the colours of all its words as guesses, as arrays.

Colours of a guess are a *pattern*: a number from 0 to 242, whose five digits to base 3 are the places in ``COLOURS``.

Notation: V words, n games, t guesses so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rl4dialog.tasks.wordle.rules import COLOURS, N_LETTERS, Duplicates, colours

N_PATTERNS = len(COLOURS) ** N_LETTERS
PATTERN_TEXTS = tuple(
    "".join(COLOURS[pattern // len(COLOURS) ** place % len(COLOURS)] for place in reversed(range(N_LETTERS)))
    for pattern in range(N_PATTERNS)
)
"""The colours of each pattern."""
_PATTERNS = {text: pattern for pattern, text in enumerate(PATTERN_TEXTS)}
_GUESSES_AT_ONCE = 256
_MAX_REMEMBERED = 100_000  # of some hundred bytes each
_TOLERANCE = 1e-9  # of equal sums of logarithms, which are added in another order


def pattern_matrix(words: Sequence[str], duplicates: Duplicates = "simple") -> np.ndarray:
    """Colour every word of a list as a guess of every other one; see :func:`rl4dialog.tasks.wordle.rules.colours`.

    Args:
        words: The words.
        duplicates: How repeated letters are coloured.

    Returns:
        The pattern of guess i if word j is hidden. Shape (V, V), uint8.
    """
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
    """The words of a game.

    Args:
        words: Different words.
        duplicates: How repeated letters are coloured.

    Attributes:
        words: The words.
        duplicates: As above.
        index: Place of each word.
        patterns: Result of :func:`pattern_matrix`. Shape (V, V), uint8.
    """

    def __init__(self, words: Sequence[str], duplicates: Duplicates = "simple") -> None:
        self.words, self.duplicates = tuple(words), duplicates
        self.index = {word: i for i, word in enumerate(self.words)}
        self.patterns = pattern_matrix(self.words, duplicates)
        self._best: dict[bytes, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.words)

    def consistent(self, answered: Iterable[tuple[str, str]]) -> np.ndarray:
        """Find the words that agree with all colours.

        Args:
            answered: Guesses, which need not be words of the list, with their colours.

        Returns:
            Shape (V,), bool; all False if the colours contradict each other, or the hidden word is not in the list.
        """
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

        Args:
            consistent: Words that agree with all colours, at least one. Shape (V,), bool.

        Returns:
            Places of the words with the highest entropy, one or more, ascending.
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
