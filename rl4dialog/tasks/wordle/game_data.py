"""Games of scripted players as data: of one player, with branches, or against imitation.

Snell et al. 2022 (ILQL, arXiv 2206.11871) train on such games: those of one player, which may start with given words;
those in which other players continue the games of an expert from each of its turns; and those whose mean is misleading.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rl4dialog.core.seeding import derive_seed
from rl4dialog.tasks.wordle.games import NO_GUESS, Choose, consistent_words, draw, play_games, returns_of
from rl4dialog.tasks.wordle.lexicon import Lexicon

_BEGINNINGS_AT_ONCE = 256
# Turn before which the adversary takes over a game of the expert.
_TAKEN_OVER = 2


@dataclass(frozen=True)
class PlayedGames:
    """Games without their texts.

    Attributes:
        words: Places of the hidden words. Shape (n,).
        guesses: Places of the guesses, ``NO_GUESS`` after the end. Shape (n, T).
        kinds: Who played each game, as places in the list of kinds of the data. Shape (n,).
    """

    words: np.ndarray
    guesses: np.ndarray
    kinds: np.ndarray

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, rows: slice | np.ndarray) -> PlayedGames:
        return PlayedGames(self.words[rows], self.guesses[rows], self.kinds[rows])

    @property
    def returns(self) -> np.ndarray:
        """Sum of the rewards of each game. Shape (n,)."""
        return returns_of(self.words, self.guesses)

    @staticmethod
    def joined(parts: Sequence[PlayedGames]) -> PlayedGames:
        """Put games one after another."""
        return PlayedGames(*(np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS))


_FIELDS = ("words", "guesses", "kinds")
MakeGames = Callable[[int, np.random.Generator], PlayedGames]
"""Makes the games that n beginnings lead to."""


def game_blocks(make: MakeGames, n: int, seed: int) -> Iterator[PlayedGames]:
    """Generate games in blocks, one at a time, so that a larger number keeps the first ones.

    Args:
        make: Result of one of the functions below.
        n: Number of games.
        seed: Random seed.
    """
    n_left = n
    for number in itertools.count():
        if n_left <= 0:
            return
        block = make(_BEGINNINGS_AT_ONCE, np.random.default_rng(derive_seed(seed, "block", number)))[:n_left]
        n_left -= len(block)
        yield block


def generate_games(make: MakeGames, n: int, seed: int) -> PlayedGames:
    """Generate the games of :func:`game_blocks` at once."""
    return PlayedGames.joined(list(game_blocks(make, n, seed)))


def player_games(lexicon: Lexicon, player: Choose, max_turns: int) -> MakeGames:
    """Games of one player, of kind 0. Hidden words are drawn with equal probability.

    Args:
        lexicon: The words.
        player: Chooses guesses.
        max_turns: Number of turns after which a game is lost.
    """

    def make(n: int, rng: np.random.Generator) -> PlayedGames:
        words = rng.integers(len(lexicon), size=n)
        return PlayedGames(words, play_games(lexicon, player, words, rng, max_turns), np.zeros(n, dtype=np.int8))

    return make


def branching_games(lexicon: Lexicon, expert: Choose, other: Choose, n_branches: int, max_turns: int) -> MakeGames:
    """Games of an expert, each after games of another player that begin like it.

    Before each turn of the expert, the first one included, the other player continues ``n_branches`` copies of the game
    to their ends. Imitating the mean gives the other player's moves; the best ones have to be put together.

    Args:
        lexicon: The words.
        expert: Player of the games of kind 0.
        other: Player that continues them, in games of kind 1.
        n_branches: Number of games that branch off before each turn.
        max_turns: Number of turns after which a game is lost.
    """

    def make(n: int, rng: np.random.Generator) -> PlayedGames:
        experts = player_games(lexicon, expert, max_turns)(n, rng)
        games, turns = np.nonzero(experts.guesses != NO_GUESS)
        games, turns = games.repeat(n_branches), turns.repeat(n_branches)
        branches = _continued(lexicon, other, experts, games, turns, 1, rng)
        return _in_order([branches, experts], [games, np.arange(n)])

    return make


def adversarial_games(
    lexicon: Lexicon,
    expert: Choose,
    adversary: Choose,
    other: Choose,
    n_adversarial: int,
    n_suboptimal: int,
    max_turns: int,
) -> MakeGames:
    """Games in which the best beginning has a bad mean, because an adversary mostly continues it.

    Each game of the expert that reaches a third turn is followed by ``n_adversarial`` games in which the adversary
    continues it from there, and each game by ``n_suboptimal`` games of another player from the start. If the adversary
    is worse than the other player, the mean return after the expert's beginning is worse, too: imitation, and values of
    the player that made the data, prefer the other beginning. The expert's moves are found by values of better players
    than the data's.

    Args:
        lexicon: The words.
        expert: Player of the games of kind 0.
        adversary: Player that continues them, in games of kind 1.
        other: Player of the games of kind 2.
        n_adversarial: Number of continuations of each game.
        n_suboptimal: Number of the other player's games for each game of the expert.
        max_turns: Number of turns after which a game is lost.
    """

    def make(n: int, rng: np.random.Generator) -> PlayedGames:
        experts = player_games(lexicon, expert, max_turns)(n, rng)
        long = experts.guesses[:, _TAKEN_OVER : _TAKEN_OVER + 1] != NO_GUESS
        games = np.flatnonzero(long.any(axis=1)).repeat(n_adversarial)
        continued = _continued(lexicon, adversary, experts, games, np.full_like(games, _TAKEN_OVER), 1, rng)
        others = player_games(lexicon, other, max_turns)(n * n_suboptimal, rng)
        others = PlayedGames(others.words, others.guesses, np.full_like(others.kinds, 2))
        return _in_order([experts, continued, others], [np.arange(n), games, np.arange(n).repeat(n_suboptimal)])

    return make


def _continued(
    lexicon: Lexicon,
    player: Choose,
    games: PlayedGames,
    rows: np.ndarray,
    turns: np.ndarray,
    kind: int,
    rng: np.random.Generator,
) -> PlayedGames:
    """Let a player continue games.

    Args:
        lexicon: The words.
        player: The player.
        games: The games.
        rows: Games to continue. Shape (m,).
        turns: Number of guesses that stay in each of them. Shape (m,).
        kind: Kind of the new games.
        rng: Source of randomness.

    Returns:
        m games. Their hidden words are drawn anew among those that agree with the colours so far, so that games with
        the same beginning are independent, given the beginning.
    """
    max_turns = games.guesses.shape[1]
    begun = np.where(np.arange(max_turns) < turns[:, None], games.guesses[rows], NO_GUESS)
    words = draw(consistent_words(lexicon, games.words[rows], begun), rng)
    guesses = play_games(lexicon, player, words, rng, max_turns, begun)
    return PlayedGames(words, guesses, np.full(len(rows), kind, dtype=np.int8))


def _in_order(parts: Sequence[PlayedGames], numbers: Sequence[np.ndarray]) -> PlayedGames:
    """Join games, sorted by the numbers of the expert's game that they belong to, then by part."""
    return PlayedGames.joined(parts)[np.argsort(np.concatenate(numbers), kind="stable")]
