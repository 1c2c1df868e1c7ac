"""A player of Wordle that always guesses the last word of the list that agrees with all colours."""

import numpy as np

from rl4dialog import WordlePlayerRegistry
from rl4dialog.features.games.wordle.players import WordlePlayer


@WordlePlayerRegistry.register("last_word")
class LastWordPlayer(WordlePlayer):
    """Guesses the last possible word."""

    def weights(self, consistent: np.ndarray, guesses: np.ndarray) -> np.ndarray:
        # Both arguments have a row per game; `consistent` and the result have a column per word, in the list's order.
        n_later = np.cumsum(consistent[:, ::-1], axis=1)[:, ::-1]
        return consistent & (n_later == 1)
