"""Many games at once, as arrays: the chosen guesses of n games, without texts.

Each game keeps one hidden word. ILQL's environment instead draws the word anew before every answer, among those that
agree with all colours so far. With equally likely words this is the posterior of the hidden one, so games have the same
law either way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rl4dialog.tasks.wordle.lexicon import Lexicon
from rl4dialog.tasks.wordle.rules import MAX_TURNS

Choose = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
"""Chooses the next guess of games: from consistent words (n, V) and guesses so far (n, t), the places of words (n,)."""
NO_GUESS = -1


def draw(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw one column per row with probability proportional to its weight.

    Args:
        weights: Numbers of at least 0, or bools, with at least one that is not 0 in each row. Shape (n, V).
        rng: Source of randomness; one number is drawn per row.

    Returns:
        Columns. Shape (n,).
    """
    sums = np.cumsum(weights, axis=1)
    # From (0, total], so that rounding never selects a weight of 0.
    thresholds = sums[:, -1:] * (1.0 - rng.random((len(weights), 1)))
    drawn: np.ndarray = np.argmax(sums >= thresholds, axis=1)
    return drawn


def play_games(
    lexicon: Lexicon,
    choose: Choose,
    words: np.ndarray,
    rng: np.random.Generator,
    max_turns: int = MAX_TURNS,
    begun: np.ndarray | None = None,
    consistent: np.ndarray | None = None,
) -> np.ndarray:
    """Play games, or continue games that have begun.

    Args:
        lexicon: The words.
        choose: The player.
        words: Places of the hidden words. Shape (n,).
        rng: Source of the player's randomness.
        max_turns: T, number of guesses after which a game is lost.
        begun: Guesses that were made already, then ``NO_GUESS``; their number can differ. Shape (n, t) with t <= T.
        consistent: Words that agree with colours of guesses before the first turn; by default all. Shape (n, V), bool.

    Returns:
        Places of the guesses, ``NO_GUESS`` after the end. Shape (n, T), int32.
    """
    guesses = np.full((len(words), max_turns), NO_GUESS, dtype=np.int32)
    if begun is not None:
        guesses[:, : begun.shape[1]] = begun
    rows = np.arange(len(words))  # games that are not over
    if consistent is None:
        consistent = np.ones((len(words), len(lexicon)), dtype=bool)
    for turn in range(max_turns):
        open_rows = guesses[rows, turn] == NO_GUESS
        if open_rows.any():
            guesses[rows[open_rows], turn] = choose(consistent[open_rows], guesses[rows[open_rows], :turn], rng)
        chosen, hidden = guesses[rows, turn], words[rows]
        goes_on = chosen != hidden
        rows, chosen, hidden, consistent = rows[goes_on], chosen[goes_on], hidden[goes_on], consistent[goes_on]
        if not len(rows):
            break
        consistent = consistent & (lexicon.patterns[chosen] == lexicon.patterns[chosen, hidden][:, None])
    return guesses


def consistent_words(lexicon: Lexicon, words: np.ndarray, guesses: np.ndarray) -> np.ndarray:
    """Find the words that agree with all colours of games.

    Args:
        lexicon: The words.
        words: Places of the hidden words. Shape (n,).
        guesses: Places of the guesses, or ``NO_GUESS``. Shape (n, t).

    Returns:
        Shape (n, V), bool.
    """
    found = np.ones((len(words), len(lexicon)), dtype=bool)
    for chosen in guesses.T:
        agree = lexicon.patterns[chosen] == lexicon.patterns[chosen, words][:, None]
        found &= agree | (chosen == NO_GUESS)[:, None]
    return found


def returns_of(words: np.ndarray, guesses: np.ndarray) -> np.ndarray:
    """Sum of the rewards of games: -1 for each guess that is not the word.

    Args:
        words: Places of the hidden words. Shape (n,).
        guesses: Places of the guesses, ``NO_GUESS`` after the end. Shape (n, T).

    Returns:
        From -T to 0. Shape (n,), int64.
    """
    returns: np.ndarray = -np.sum((guesses != NO_GUESS) & (guesses != words[:, None]), axis=1)
    return returns
