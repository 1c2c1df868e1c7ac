"""The partner, who hides a word and colours guesses, and scripted players, whose returns are in `docs/wordle.md`.

Players play many games at once, as arrays of n games without texts. Each game keeps one hidden word. ILQL's environment
instead draws the word anew before every answer, among those that agree with all colours so far. With equally likely
words this is the posterior of the hidden one, so games have the same law either way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rl4dialog.catalog import WordlePlayerRegistry
from rl4dialog.core.arguments import Count, Fraction
from rl4dialog.core.config_blocks import inner_component
from rl4dialog.core.errors import ConfigError, DataError, shown
from rl4dialog.core.protocols import Partner, Player
from rl4dialog.core.types import PartnerReply
from rl4dialog.features.games.wordle import rules

Choose = Callable[[np.ndarray, np.ndarray, np.random.Generator], np.ndarray]
"""Chooses the next guess of games: from consistent words (n, V) and guesses so far (n, t), the places of words (n,)."""
NO_GUESS = -1


def draw(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw one column per row, with probability proportional to its weight of (n, V); one number is drawn per row."""
    sums = np.cumsum(weights, axis=1)
    # From (0, total], so that rounding never selects a weight of 0.
    thresholds = sums[:, -1:] * (1.0 - rng.random((len(weights), 1)))
    return np.argmax(sums >= thresholds, axis=1)


def play_games(
    lexicon: rules.Lexicon,
    choose: Choose,
    words: np.ndarray,
    rng: np.random.Generator,
    max_turns: int = rules.MAX_TURNS,
    begun: np.ndarray | None = None,
    consistent: np.ndarray | None = None,
) -> np.ndarray:
    """Play games, or continue games that have begun.

    Hidden `words` and guesses are places in the lexicon, of shape (n,) and (n, T); `begun` has guesses that were made
    already, (n, t) with t <= T, whose number can differ, and `consistent` the words that agree with colours before the
    first turn, (n, V). Guesses after the end are ``NO_GUESS``.
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


def consistent_words(lexicon: rules.Lexicon, words: np.ndarray, guesses: np.ndarray) -> np.ndarray:
    """The words that agree with all colours of games, of shape (n, V), by words (n,) and guesses (n, t)."""
    found = np.ones((len(words), len(lexicon)), dtype=bool)
    for chosen in guesses.T:
        agree = lexicon.patterns[chosen] == lexicon.patterns[chosen, words][:, None]
        found &= agree | (chosen == NO_GUESS)[:, None]
    return found


def returns_of(words: np.ndarray, guesses: np.ndarray) -> np.ndarray:
    """Sum of the rewards of games: -1 for each guess that is not the word. From words (n,) and guesses (n, T)."""
    return -np.sum((guesses != NO_GUESS) & (guesses != words[:, None]), axis=1)


NAMES = ("random", "wrong", "repeat", "mixture", "consistent", "info_gain", "monte_carlo")
"""Players that need no arguments, weak ones first."""


@dataclass(frozen=True)
class Game:
    """What players know of a game, and who else plays it."""

    lexicon: rules.Lexicon
    letters: rules.Letters = "plain"
    max_turns: int = rules.MAX_TURNS
    blocks: Mapping[str, Any] = field(default_factory=dict)  # further players, with id and args, by name
    within: tuple[str, ...] = ()  # names of players of which the next one is a part

    def player(self, name: str, **more: Any) -> WordlePlayer:
        """Build the player of a block or an id, with more arguments."""
        if name in self.within:
            around = " of ".join((name, *reversed(self.within)))
            raise ConfigError(f"datapool.args.players: {around} is part of itself")
        block = inner_component(self.blocks.get(name, name), f"datapool.args.players.{name}")
        game = replace(self, within=(*self.within, name))
        found = WordlePlayerRegistry.get(block.id, {**block.args, **more}, game=game)
        if not isinstance(found, WordlePlayer):
            raise ConfigError(f"Wordle player {block.id!r} must derive from {WordlePlayer.__module__}.WordlePlayer")
        return found


class WordlePlayer(Player):
    """Base class: draws a guess with the weights that a subclass gives to the words, or as it says in `guess`.

    The words of the game are also what the player takes for possible hidden words.

    Args:
        start_words: First guesses, one of which is drawn.
    """

    def __init__(self, game: Game, start_words: Sequence[str] = ()) -> None:
        self._game, self._lexicon, self._letters = game, game.lexicon, game.letters
        for word in start_words:
            if word not in game.lexicon.index:
                raise DataError(f"start_words: {word!r} is not in the list of {len(game.lexicon)} words")
        self._start = np.array([game.lexicon.index[word] for word in start_words], dtype=np.int64)
        self._rng = np.random.default_rng(0)

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def say(self, history: list[str], must_agree: bool = False) -> str:
        # The last utterance is the partner's.
        said = [rules.read(text, self._letters) for text in history[-2::-2]]
        heard = [rules.read_colours(text, self._letters) for text in history[-1::-2]]
        answered = [(guess, colour) for guess, colour in zip(said, heard, strict=False) if guess and colour]
        consistent = self._lexicon.consistent(answered)
        if not consistent.any():  # the hidden word is not in the list, or the colours contradict each other
            if must_agree:
                raise DataError(f"none of the {len(self._lexicon)} words of its list agrees with all colours")
            consistent[:] = True
        guesses = [self._lexicon.index[guess] for guess, _ in reversed(answered) if guess in self._lexicon.index]
        (chosen,) = self.choose(consistent[None], np.array([guesses], dtype=np.int64), self._rng)
        return rules.written(self._lexicon.words[chosen], self._letters)

    def hint(self, history: list[str]) -> str:
        return self.say(history, must_agree=True)

    def choose(self, consistent: np.ndarray, guesses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Choose the next guess of several games, (n,), by consistent words, (n, V), and guesses so far, (n, t)."""
        if guesses.shape[1] == 0 and len(self._start):
            return rng.choice(self._start, len(guesses))
        return self.guess(consistent, guesses, rng)

    def guess(self, consistent: np.ndarray, guesses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The next guess after any start word, as in :meth:`choose`."""
        return draw(self.weights(consistent, guesses), rng)

    def weights(self, consistent: np.ndarray, guesses: np.ndarray) -> np.ndarray:
        """Relative probabilities of the words as next guess, (n, V); arguments as in :meth:`choose`."""
        raise NotImplementedError(f"{type(self).__name__} has to define weights or guess")


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
    """Repeats one of its guesses, at random, so it only wins if the first guess is the word.

    Args:
        first_n: Number of turns whose guesses are repeated; by default all.
    """

    def __init__(self, game: Game, first_n: Count | None = None, **kwargs: Any) -> None:
        super().__init__(game, **kwargs)
        self._first_n = first_n

    def weights(self, consistent: np.ndarray, guesses: np.ndarray) -> np.ndarray:
        if guesses.shape[1] == 0:
            return np.ones_like(consistent)
        counts = np.zeros(consistent.shape, dtype=np.int64)
        np.add.at(counts, (np.arange(len(guesses))[:, None], guesses[:, : self._first_n]), 1)
        return counts


class ConsistentPlayer(WordlePlayer):
    """Guesses a word that agrees with all colours."""

    def weights(self, consistent: np.ndarray, guesses: np.ndarray) -> np.ndarray:
        return consistent


class MixturePlayer(WordlePlayer):
    """Guesses like `consistent`, with a probability, or like `random`; drawn anew on each turn.

    Args:
        p_consistent: Probability of a consistent guess.
    """

    def __init__(self, game: Game, p_consistent: Fraction = 0.34, **kwargs: Any) -> None:
        super().__init__(game, **kwargs)
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


class EitherPlayer(WordlePlayer):
    """Guesses like one of two players; which one is drawn anew on each turn.

    Args:
        first: A player.
        second: Another player.
        p_first: Probability of a guess of the first one.
    """

    def __init__(self, game: Game, first: str, second: str, p_first: Fraction = 0.5, **kwargs: Any) -> None:
        super().__init__(game, **kwargs)
        self._players, self._p_first = (game.player(first), game.player(second)), p_first

    def guess(self, consistent: np.ndarray, guesses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        is_first, found = rng.random(len(guesses)) < self._p_first, np.empty(len(guesses), dtype=np.int64)
        for player, rows in zip(self._players, (is_first, ~is_first), strict=True):
            if rows.any():
                found[rows] = player.choose(consistent[rows], guesses[rows], rng)
        return found


class MonteCarloPlayer(WordlePlayer):
    """Plays the game to its end many times like another player, and makes the guess with the best mean return.

    Hidden words of these games are drawn among those that agree with all colours.

    Args:
        player: The other player.
        n_samples: Number of games before each guess.
    """

    def __init__(self, game: Game, player: str = "consistent", n_samples: Count = 100, **kwargs: Any) -> None:
        super().__init__(game, **kwargs)
        self._player, self._n_samples = game.player(player), n_samples

    def guess(self, consistent: np.ndarray, guesses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.array([self._best(*game, rng) for game in zip(consistent, guesses, strict=True)])

    def _best(self, consistent: np.ndarray, guesses: np.ndarray, rng: np.random.Generator) -> int:
        def choose(consistent: np.ndarray, later: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            past = np.broadcast_to(guesses, (len(later), len(guesses)))
            return self._player.choose(consistent, np.concatenate([past, later], axis=1), rng)

        n_left = max(self._game.max_turns - len(guesses), 1)
        possible = np.broadcast_to(consistent, (self._n_samples, len(consistent)))
        words = draw(possible, rng)
        played = play_games(self._lexicon, choose, words, rng, n_left, consistent=possible)
        tried = played[:, 0]
        counts, sums = np.bincount(tried), np.bincount(tried, weights=returns_of(words, played))
        return int(np.argmax(np.where(counts, sums / np.maximum(counts, 1), -np.inf)))


class WordlePartner(Partner):
    """Hides the sample's five-letter word, colours guesses, pays -1 for wrong ones, and leaves after the right one.

    An utterance that is not a guess costs 1, too, and is answered with ``no word``. Outcomes: ``success`` is 1 if the
    word was guessed, and ``malformed`` is the number of utterances that were not a guess.

    Args:
        letters: How guesses and colours are written, as in the datapool: ``plain`` (``crane``) or ``spaced``.
        duplicates: How repeated letters are coloured, as in the datapool. ``simple``: a letter at the wrong place is
            yellow if it is in the word at all; ``official``: as many of a repeated letter as the word has are coloured.
        guesses: ``any``: any five letters are a guess, as in ILQL. ``listed``: only words of a list, as in LMRL-Gym.
        word_list: With ``guesses: listed``, the packaged list, 40 or 240.
        path: With ``guesses: listed``, a file with one word per line, instead.
    """

    role = "You hide a word, and mark each letter of a guess: g in its place, y elsewhere in the word, b not in it."
    pays = True
    outcomes = ("success", "malformed")
    checks_samples = True

    def __init__(
        self,
        letters: rules.Letters = "plain",
        duplicates: rules.Duplicates = "simple",
        guesses: Literal["any", "listed"] = "any",
        word_list: rules.ListName | None = None,
        path: str | None = None,
    ) -> None:
        self._rules = {"letters": letters, "duplicates": duplicates}
        self._letters, self._duplicates = letters, duplicates
        self._listed = _listed(word_list, path) if guesses == "listed" else None
        if self._listed is None and (word_list is not None or path is not None):
            raise DataError("partner 'wordle': word_list and path are the words that guesses: listed allows; set it")
        self._word = ""
        self._solved, self._n_malformed = False, 0

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        word = meta_info.get("word")
        self._solved, self._n_malformed = False, 0
        if not isinstance(word, str) or rules.read(word, "plain") != word or not self._is_allowed(word):
            allowed = "five lower-case letters" if self._listed is None else "a word of the partner's list"
            cure = "use the datapool wordle, with the same list"
            raise DataError(
                f"partner 'wordle' needs samples whose meta_data['word'] is {allowed}, not {shown(word)}; {cure}"
            )
        for name, own in self._rules.items():
            if meta_info.get(name, own) != own:
                problem = f"has {name}: {own}, but the sample was made with {name}: {meta_info[name]}"
                raise DataError(f"partner 'wordle' {problem}; set the same in datapool.args and in the partner's args")
        self._word = word

    def secret(self) -> str:
        return rules.written(self._word, self._letters)

    def reply(self, history: list[str]) -> PartnerReply:
        guess = rules.read(history[-1], self._letters)
        if guess is None or not self._is_allowed(guess):
            self._n_malformed += 1
            return PartnerReply(rules.NO_WORD, reward=rules.reward(None, self._word))
        self._solved = guess == self._word
        text = rules.written(rules.colours(guess, self._word, self._duplicates), self._letters)
        return PartnerReply(text, reward=rules.reward(guess, self._word), leaves=self._solved)

    def outcome(self) -> dict[str, float]:
        return {"success": float(self._solved), "malformed": float(self._n_malformed)}

    def _is_allowed(self, guess: str) -> bool:
        return self._listed is None or guess in self._listed


@functools.lru_cache(maxsize=8)  # shared by the environments of a process
def _listed(word_list: rules.ListName | None, path: str | None) -> frozenset[str]:
    return frozenset(rules.load_words(word_list, path))
