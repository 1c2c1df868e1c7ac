"""The law of games: hidden words against words that are drawn anew, exactly; games as arrays against that law."""

from __future__ import annotations

import functools
import time

import numpy as np
import pytest

from rl4dialog.core.types import Sample
from rl4dialog.tasks.playing import play
from rl4dialog.tasks.wordle.game_data import generate_games, player_games
from rl4dialog.tasks.wordle.games import NO_GUESS, consistent_words, draw, play_games, returns_of
from rl4dialog.tasks.wordle.lexicon import PATTERN_TEXTS, Lexicon
from rl4dialog.tasks.wordle.partner import WordlePartner
from rl4dialog.tasks.wordle.players import PLAYERS, PlayerName, WordlePlayer
from rl4dialog.tasks.wordle.rules import OPENING, SOLVED, Duplicates
from rl4dialog.tasks.wordle.words import load_words

WORDS = ("llama", "label", "belle", "allow", "geese", "speed", "erase", "steel")
T = 6
EXPLICIT: list[PlayerName] = ["random", "wrong", "repeat", "mixture", "consistent", "info_gain"]
"""Players whose weights are known; `monte_carlo` samples."""


def law(player: WordlePlayer, lexicon: Lexicon, redraw: bool) -> np.ndarray:
    """Probability of each number of wrong guesses, by enumeration. Shape (T + 1,).

    Args:
        player: The player.
        lexicon: The words.
        redraw: Whether the word is drawn anew, among the consistent ones, before every answer.
    """
    n = len(lexicon)
    keeps_guesses = type(player) is PLAYERS["repeat"]

    @functools.cache
    def rest(consistent: tuple[bool, ...], guesses: tuple[int, ...], hidden: int | None) -> np.ndarray:
        found = np.zeros(T + 1)
        if len(guesses) == T:
            found[0] = 1
            return found
        possible = np.array(consistent)
        weights = player.weights(possible[None], np.array([guesses], dtype=np.int64))[0].astype(float)
        words = np.flatnonzero(possible) if hidden is None else [hidden]
        for guess in np.flatnonzero(weights):
            for word in words:
                p = weights[guess] / weights.sum() / len(words)
                if guess == word:
                    found[0] += p
                    continue
                agrees = possible & (lexicon.patterns[guess] == lexicon.patterns[guess, word])
                later = (*guesses, int(guess)) if keeps_guesses else (*guesses, 0)
                found[1:] += p * rest(tuple(agrees), tuple(sorted(later)), hidden)[:-1]
        return found

    start = (True,) * n
    if redraw:
        return rest(start, (), None)
    return np.mean([rest(start, (), hidden) for hidden in range(n)], axis=0)


@pytest.mark.parametrize("duplicates", ["simple", "official"])
@pytest.mark.parametrize("name", EXPLICIT)
def test_hidden_word_and_redrawn_word_have_one_law(name: PlayerName, duplicates: Duplicates) -> None:
    lexicon = Lexicon(WORDS, duplicates)
    player = PLAYERS[name](lexicon)
    hidden = law(player, lexicon, redraw=False)
    assert hidden.sum() == pytest.approx(1)
    assert hidden == pytest.approx(law(player, lexicon, redraw=True), abs=1e-12)


@pytest.mark.parametrize("name", EXPLICIT)
def test_games_follow_the_law(name: PlayerName) -> None:
    lexicon, n = Lexicon(WORDS), 20_000
    player = PLAYERS[name](lexicon)
    expected = law(player, lexicon, redraw=False)
    games = generate_games(player_games(lexicon, player.choose, T), n, seed=1)
    found = np.bincount(-games.returns, minlength=T + 1) / n
    assert found == pytest.approx(expected, abs=0.02)  # of four standard errors, at most 0.015
    assert (np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / n) + 1e-12).all()


@pytest.mark.parametrize("name", EXPLICIT)
def test_conversations_follow_the_law(name: PlayerName) -> None:
    lexicon, n = Lexicon(WORDS), 400
    returns = []
    for i in range(n):
        sample = Sample(i, OPENING, [], {"history": [OPENING], "word": WORDS[i % len(WORDS)]})
        game = play(PLAYERS[name](lexicon), WordlePartner(), sample, T, seed=i)
        returns.append(sum(turn.reward for turn in game.said))
    expected = law(PLAYERS[name](lexicon), lexicon, redraw=False)
    mean = -np.arange(T + 1) @ expected
    error = np.sqrt((np.arange(T + 1) + mean) ** 2 @ expected / n)
    assert np.mean(returns) == pytest.approx(mean, abs=4 * error + 1e-9)


def test_law_of_blind_guesses_is_geometric() -> None:
    lexicon = Lexicon(WORDS)
    expected = [(7 / 8) ** k / 8 for k in range(T)] + [(7 / 8) ** T]
    assert law(PLAYERS["random"](lexicon), lexicon, redraw=False) == pytest.approx(expected)
    first = [1 / 8] + [0] * (T - 1) + [7 / 8]
    assert law(PLAYERS["repeat"](lexicon), lexicon, redraw=False) == pytest.approx(first)


def test_information_gain_has_its_exact_return() -> None:
    """Mean return over all words of a list, by recursion over the sets of words that colours leave."""
    lexicon = Lexicon(load_words(240))

    @functools.cache
    def total(words: tuple[int, ...], turn: int) -> float:
        if turn == T:
            return 0.0
        consistent = np.isin(np.arange(240), words)
        best = lexicon.most_informative(consistent)
        found = 0.0
        for guess in best:
            parts: dict[int, list[int]] = {}
            for word in words:
                parts.setdefault(int(lexicon.patterns[guess, word]), []).append(word)
            parts.pop(len(PATTERN_TEXTS) - 1)  # the guess itself
            found += sum(total(tuple(part), turn + 1) - len(part) for part in parts.values())
        return found / len(best)

    player, n = PLAYERS["info_gain"](lexicon), 10_000
    returns = generate_games(player_games(lexicon, player.choose, T), n, seed=0).returns
    error = returns.std() / np.sqrt(n)
    assert returns.mean() == pytest.approx(total(tuple(range(240)), 0) / 240, abs=4 * error)


@pytest.mark.parametrize(
    ("name", "words", "expected"),
    [("mixture", 240, -3.829), ("consistent", 240, -2.127), ("mixture", 40, -3.063), ("consistent", 40, -1.485)],
)
def test_returns_are_those_measured(name: PlayerName, words: int, expected: float) -> None:
    lexicon, n = Lexicon(load_words(words)), 5000  # type: ignore[arg-type]
    returns = generate_games(player_games(lexicon, PLAYERS[name](lexicon).choose, T), n, seed=3).returns
    assert returns.mean() == pytest.approx(expected, abs=4 * returns.std() * np.sqrt(1 / n + 1 / 20_000))


def test_games_end_with_the_word_or_after_all_turns() -> None:
    lexicon = Lexicon(WORDS)
    games = generate_games(player_games(lexicon, PLAYERS["mixture"](lexicon).choose, 4), 500, seed=0)
    lengths = set()
    for word, guesses in zip(games.words, games.guesses, strict=True):
        made = guesses[guesses != NO_GUESS]
        assert (guesses[len(made) :] == NO_GUESS).all()
        assert (made[:-1] != word).all()
        assert made[-1] == word or len(made) == 4
        lengths.add((len(made), made[-1] == word))
    assert lengths == {(1, True), (2, True), (3, True), (4, True), (4, False)}
    assert returns_of(games.words, games.guesses).min() == -4


def test_begun_games_keep_their_guesses() -> None:
    lexicon = Lexicon(WORDS)
    begun = np.array([[1, 2, NO_GUESS], [3, NO_GUESS, NO_GUESS], [NO_GUESS] * 3, [4, 0, NO_GUESS]])
    words = np.array([0, 0, 0, 0])
    asked = []

    def choose(consistent: np.ndarray, guesses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        asked.append((guesses.tolist(), consistent.copy()))
        return np.full(len(guesses), 7)

    guesses = play_games(lexicon, choose, words, np.random.default_rng(0), 3, begun)
    assert guesses.tolist() == [[1, 2, 7], [3, 7, 7], [7, 7, 7], [4, 0, NO_GUESS]]
    assert [each for each, _ in asked] == [[[]], [[3], [7]], [[1, 2], [3, 7], [7, 7]]]
    (consistent,) = consistent_words(lexicon, words[:1], begun[:1])
    assert (asked[-1][1][0] == consistent).all()
    answered = [(WORDS[i], PATTERN_TEXTS[lexicon.patterns[i, 0]]) for i in (1, 2)]
    assert (consistent == lexicon.consistent(answered)).all()


def test_draws_follow_the_weights() -> None:
    rng = np.random.default_rng(0)
    weights = np.array([0.0, 1.0, 0.0, 3.0, 0.0])
    counts = np.bincount(draw(np.broadcast_to(weights, (20_000, 5)), rng), minlength=5)
    assert counts[[0, 2, 4]].sum() == 0
    assert counts[3] / 20_000 == pytest.approx(0.75, abs=0.012)

    class Extreme:
        def __init__(self, value: float) -> None:
            self.value = value

        def random(self, shape: tuple[int, int]) -> np.ndarray:
            return np.full(shape, self.value)

    tiny = np.array([[0.0, 0.1, 0.2, 0.3, 0.0]])
    for value, expected in ((0.0, 3), (np.nextafter(1.0, 0.0), 1)):
        assert draw(tiny, Extreme(value)).tolist() == [expected]  # type: ignore[arg-type]


def test_ten_thousand_games_take_a_second() -> None:
    lexicon = Lexicon(load_words(240))
    player = PLAYERS["mixture"](lexicon)
    start = time.process_time()
    games = generate_games(player_games(lexicon, player.choose, T), 10_000, seed=0)
    assert time.process_time() - start < 1
    assert PATTERN_TEXTS[lexicon.patterns[games.words[0], games.words[0]]] == SOLVED
