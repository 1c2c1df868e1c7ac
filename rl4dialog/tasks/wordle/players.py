"""Scripted players. `docs/wordle.md` has their returns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from rl4dialog.core.errors import DataError
from rl4dialog.core.protocols import Player
from rl4dialog.tasks.wordle.games import draw, play_games, returns_of
from rl4dialog.tasks.wordle.lexicon import Lexicon
from rl4dialog.tasks.wordle.rules import MAX_TURNS, Letters, read, read_colours, written

PlayerName = Literal["random", "wrong", "repeat", "mixture", "consistent", "info_gain", "monte_carlo"]


class WordlePlayer(Player):
    """Base class: draws a guess with the weights that a subclass gives to the words.

    Args:
        lexicon: The words; also what the player takes for possible hidden words.
        letters: How guesses and colours are written.
        start_words: Words of the first guess, one of which is drawn; by default the player chooses it.
    """

    def __init__(self, lexicon: Lexicon, letters: Letters = "plain", start_words: Sequence[str] = ()) -> None:
        for word in start_words:
            if word not in lexicon.index:
                raise DataError(f"start_words: {word!r} is not in the list of {len(lexicon)} words")
        self._lexicon, self._letters = lexicon, letters
        self._start = np.array([lexicon.index[word] for word in start_words], dtype=np.int64)
        self._rng = np.random.default_rng(0)

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def say(self, history: list[str]) -> str:
        # The last utterance is the partner's.
        said = [read(text, self._letters) for text in history[-2::-2]]
        heard = [read_colours(text, self._letters) for text in history[-1::-2]]
        answered = [
            (guess, colours)
            for guess, colours in zip(said, heard, strict=False)
            if guess is not None and colours is not None
        ]
        consistent = self._lexicon.consistent(answered)
        if not consistent.any():  # the hidden word is not in the list, or the colours contradict each other
            consistent[:] = True
        guesses = [self._lexicon.index[guess] for guess, _ in reversed(answered) if guess in self._lexicon.index]
        (chosen,) = self.choose(consistent[None], np.array([guesses], dtype=np.int64), self._rng)
        return written(self._lexicon.words[chosen], self._letters)

    def choose(self, consistent: np.ndarray, guesses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Choose the next guess of several games.

        Args:
            consistent: Words that agree with all colours, at least one per game. Shape (n, V), bool.
            guesses: Places of the guesses so far. Shape (n, t).
            rng: Source of randomness.

        Returns:
            Places of words. Shape (n,).
        """
        if guesses.shape[1] == 0 and len(self._start):
            return rng.choice(self._start, len(guesses))
        return draw(self.weights(consistent, guesses), rng)

    @abstractmethod
    def weights(self, consistent: np.ndarray, guesses: np.ndarray) -> np.ndarray:
        """Weigh the words of the list by how probable they are as next guess; arguments as in :meth:`choose`.

        Returns:
            Relative probabilities. Shape (n, V).
        """


class RandomPlayer(WordlePlayer):
    """Guesses any word, without looking at colours."""

    def weights(self, consistent: np.ndarray, guesses: np.ndarray) -> np.ndarray:
        return np.ones_like(consistent)


class WrongPlayer(WordlePlayer):
    """Guesses a word that contradicts the colours; any word on the first turn, on which none does."""

    def weights(self, consistent: np.ndarray, guesses: np.ndarray) -> np.ndarray:
        inconsistent = ~consistent
        return inconsistent | ~inconsistent.any(axis=1, keepdims=True)


class RepeatPlayer(WordlePlayer):
    """Repeats one of its guesses, at random, so it only wins if the first guess is the word."""

    def weights(self, consistent: np.ndarray, guesses: np.ndarray) -> np.ndarray:
        if guesses.shape[1] == 0:
            return np.ones_like(consistent)
        counts = np.zeros(consistent.shape, dtype=np.int64)
        np.add.at(counts, (np.arange(len(guesses))[:, None], guesses), 1)
        return counts


class ConsistentPlayer(WordlePlayer):
    """Guesses a word that agrees with all colours."""

    def weights(self, consistent: np.ndarray, guesses: np.ndarray) -> np.ndarray:
        return consistent


class MixturePlayer(WordlePlayer):
    """Guesses like `ConsistentPlayer` or like `RandomPlayer`, drawn anew on each turn.

    Args:
        lexicon: As for all players.
        letters: As for all players.
        start_words: As for all players.
        p_consistent: Probability of a consistent guess.
    """

    def __init__(
        self,
        lexicon: Lexicon,
        letters: Letters = "plain",
        start_words: Sequence[str] = (),
        p_consistent: float = 0.34,
    ) -> None:
        super().__init__(lexicon, letters, start_words)
        self._p_consistent = p_consistent

    def weights(self, consistent: np.ndarray, guesses: np.ndarray) -> np.ndarray:
        p, n_consistent = self._p_consistent, consistent.sum(axis=1, keepdims=True)
        return consistent * (p / n_consistent) + (1 - p) / consistent.shape[1]


class InfoGainPlayer(WordlePlayer):
    """Guesses the consistent word with the most informative colours."""

    def weights(self, consistent: np.ndarray, guesses: np.ndarray) -> np.ndarray:
        best = np.zeros_like(consistent)
        for row, possible in zip(best, consistent, strict=True):
            row[self._lexicon.most_informative(possible)] = True
        return best


class MonteCarloPlayer(ConsistentPlayer):
    """Plays the game to its end many times like `ConsistentPlayer`, and makes the guess with the best mean return.

    Args:
        lexicon: As for all players.
        letters: As for all players.
        start_words: As for all players.
        max_turns: Number of turns after which a game is lost.
        n_samples: Number of games played before each guess, with hidden words that agree with the colours.
    """

    def __init__(
        self,
        lexicon: Lexicon,
        letters: Letters = "plain",
        start_words: Sequence[str] = (),
        max_turns: int = MAX_TURNS,
        n_samples: int = 100,
    ) -> None:
        super().__init__(lexicon, letters, start_words)
        self._max_turns, self._n_samples = max_turns, n_samples

    def choose(self, consistent: np.ndarray, guesses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if guesses.shape[1] == 0 and len(self._start):
            return super().choose(consistent, guesses, rng)
        return np.array([self._best(*game, rng) for game in zip(consistent, guesses, strict=True)])

    def _best(self, consistent: np.ndarray, guesses: np.ndarray, rng: np.random.Generator) -> int:
        n_left = max(self._max_turns - len(guesses), 1)
        possible = np.broadcast_to(consistent, (self._n_samples, len(consistent)))
        words = draw(possible, rng)
        played = play_games(self._lexicon, _consistent_guess, words, rng, n_left, consistent=possible)
        tried = played[:, 0]
        counts, sums = np.bincount(tried), np.bincount(tried, weights=returns_of(words, played))
        return int(np.argmax(np.where(counts, sums / np.maximum(counts, 1), -np.inf)))


def _consistent_guess(consistent: np.ndarray, guesses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return draw(consistent, rng)


PLAYERS: dict[PlayerName, type[WordlePlayer]] = {
    "random": RandomPlayer,
    "wrong": WrongPlayer,
    "repeat": RepeatPlayer,
    "mixture": MixturePlayer,
    "consistent": ConsistentPlayer,
    "info_gain": InfoGainPlayer,
    "monte_carlo": MonteCarloPlayer,
}
"""The players by name."""
