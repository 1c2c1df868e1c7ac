"""Scripted players: what distinguishes them, and what they have in common."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, Dialogue, Sample
from rl4dialog.tasks.playing import play
from rl4dialog.tasks.wordle.game_data import generate_games, player_games
from rl4dialog.tasks.wordle.games import NO_GUESS, consistent_words
from rl4dialog.tasks.wordle.lexicon import Lexicon
from rl4dialog.tasks.wordle.partner import WordlePartner
from rl4dialog.tasks.wordle.players import PLAYERS, MixturePlayer, MonteCarloPlayer, PlayerName
from rl4dialog.tasks.wordle.rules import NO_WORD, OPENING, Letters, read
from rl4dialog.tasks.wordle.words import load_words

LEXICON = Lexicon(load_words(40))
NAMES = list(PLAYERS)


def play_one(name: PlayerName, seed: int, letters: Letters = "plain", word: str = "music") -> Dialogue:
    sample = Sample(0, OPENING, [], {"history": [OPENING], "word": word})
    return play(PLAYERS[name](LEXICON, letters), WordlePartner(letters), sample, 6, seed)


def agrees(name: PlayerName, n: int = 1000, first: int = 0) -> list[bool]:
    """Whether each guess, from the given turn on, agrees with the colours before it."""
    games = generate_games(player_games(LEXICON, PLAYERS[name](LEXICON).choose, 6), n, seed=5)
    found = []
    for turn in range(first, 6):
        made = games.guesses[:, turn] != NO_GUESS
        consistent = consistent_words(LEXICON, games.words[made], games.guesses[made, :turn])
        found += consistent[np.arange(len(consistent)), games.guesses[made, turn]].tolist()
    return found


@pytest.mark.parametrize("name", ["consistent", "info_gain"])
def test_consistent_players_never_contradict_a_colour(name: PlayerName) -> None:
    assert all(agrees(name))


def test_monte_carlo_player_never_contradicts_a_colour() -> None:
    for seed in range(20):
        texts = [turn.text for turn in play_one("monte_carlo", seed).turns]
        for i in range(1, len(texts), 2):
            answered = list(zip(texts[1:i:2], texts[2:i:2], strict=True))
            assert LEXICON.consistent(answered)[LEXICON.index[texts[i]]]


def test_wrong_player_always_contradicts_after_the_first_guess() -> None:
    assert not any(agrees("wrong", first=1))
    assert all(agrees("wrong", first=0)[:1000])


def test_mixture_is_consistent_as_often_as_its_parts() -> None:
    chance = np.mean(agrees("random", 4000))
    found = np.mean(agrees("mixture", 4000))
    assert chance < found < np.mean(agrees("consistent", 100)) == 1
    weights = MixturePlayer(LEXICON, p_consistent=0.34).weights(np.arange(40)[None] < 4, np.zeros((1, 1), dtype=int))
    assert weights.sum() == pytest.approx(1)
    assert weights[0, :4].sum() == pytest.approx(0.34 + 0.66 * 4 / 40)


@pytest.mark.parametrize(("p", "name"), [(0.0, "random"), (1.0, "consistent")])
def test_mixture_of_one_part_is_that_player(p: float, name: PlayerName) -> None:
    consistent, guesses = np.arange(40)[None] % 3 == 1, np.zeros((1, 2), dtype=int)
    weights = MixturePlayer(LEXICON, p_consistent=p).weights(consistent, guesses)
    expected = PLAYERS[name](LEXICON).weights(consistent, guesses)
    assert weights / weights.sum() == pytest.approx(expected / expected.sum())


def test_repeat_player_says_only_its_first_word() -> None:
    firsts = set()
    for seed in range(30):
        said = play_one("repeat", seed).texts(AGENT)
        assert len(set(said)) == 1 and len(said) in (1, 6)
        firsts.add(said[0])
    assert len(firsts) > 10


def test_repeat_player_repeats_begun_games_as_often_as_they_do() -> None:
    weights = PLAYERS["repeat"](LEXICON).weights(np.ones((2, 40), dtype=bool), np.array([[3, 5, 3], [7, 8, 9]]))
    assert weights[0, [3, 5]].tolist() == [2, 1] and weights[1, [7, 8, 9]].tolist() == [1, 1, 1]
    assert weights.sum() == 6


def test_monte_carlo_player_prefers_words_that_are_probably_right() -> None:
    lexicon = Lexicon(("aaaab", "aaaac", "aaaad", "zzzzz", "bcdaa"))
    player = MonteCarloPlayer(lexicon, n_samples=4000)
    rng = np.random.default_rng(0)
    consistent = np.array([[True, True, True, False, False]])
    assert player.choose(consistent, np.array([[3]]), rng)[0] in (0, 1, 2)
    # bcdaa tells the three others apart, and is one of the possible words: two turns at most.
    assert player.choose(np.array([[True, True, True, False, True]]), np.array([[3]]), rng).tolist() == [4]


def test_monte_carlo_player_plays_beyond_its_turns() -> None:
    player = MonteCarloPlayer(LEXICON, max_turns=2, n_samples=5)
    consistent = np.arange(40)[None] == 17
    assert player.choose(consistent, np.zeros((1, 4), dtype=int), np.random.default_rng(0)).tolist() == [17]


def test_players_are_ordered() -> None:
    names: list[PlayerName] = ["repeat", "random", "mixture", "consistent", "info_gain"]
    games = {name: player_games(LEXICON, PLAYERS[name](LEXICON).choose, 6) for name in names}
    means = [generate_games(games[name], 4000, seed=0).returns.mean() for name in names]
    assert all(worse < better for worse, better in pairwise(means))


@pytest.mark.parametrize("letters", ["plain", "spaced"])
@pytest.mark.parametrize("name", NAMES)
def test_every_player_speaks_the_language_of_the_game(name: PlayerName, letters: Letters) -> None:
    game = play_one(name, 3, letters)
    assert all(read(text, letters) in LEXICON.index for text in game.texts(AGENT))
    assert game.outcome["malformed"] == 0


def test_style_changes_no_guess() -> None:
    for name in NAMES:
        plain, spaced = play_one(name, 4).texts(AGENT), play_one(name, 4, "spaced").texts(AGENT)
        assert plain == [text.replace(" ", "") for text in spaced]


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_words(name: PlayerName) -> None:
    games = [play_one(name, seed, word="zzzzz").texts(AGENT) for seed in range(8)]
    assert games == [play_one(name, seed, word="zzzzz").texts(AGENT) for seed in range(8)]
    assert len({tuple(game) for game in games}) > 1


@pytest.mark.parametrize("name", NAMES)
def test_start_words_are_the_first_guesses_only(name: PlayerName) -> None:
    player = PLAYERS[name](LEXICON, start_words=["music", "ocean"])
    games = generate_games(player_games(LEXICON, player.choose, 3), 30, seed=0)
    assert {LEXICON.words[i] for i in games.guesses[:, 0]} == {"music", "ocean"}
    later = {LEXICON.words[i] for i in games.guesses[:, 1] if i != NO_GUESS}
    assert name == "repeat" or not later <= {"music", "ocean"}


def test_start_word_of_another_list_is_an_error() -> None:
    with pytest.raises(DataError, match="start_words: 'crane' is not in the list of 40 words"):
        PLAYERS["random"](LEXICON, start_words=["music", "crane"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "history",
    [
        [OPENING, "music", "ggggg", "music", "bbbbb"],  # a contradiction
        [OPENING, "music", NO_WORD],
        [OPENING, "nonsense", NO_WORD, "zzzzz", "bbbbb"],
        ["hello"],
        [],
    ],
)
def test_strange_histories_do_not_stop_a_player(name: PlayerName, history: list[str]) -> None:
    player = PLAYERS[name](LEXICON)
    player.reset({}, 0)
    assert player.say(history) in LEXICON.index


def test_answers_to_other_guesses_count() -> None:
    player = PLAYERS["consistent"](LEXICON)
    hidden = "music"
    partner = WordlePartner()
    partner.reset({"word": hidden}, 0)
    history = [OPENING]
    for guess in ("mumps", "basic"):  # not in the list
        history.append(guess)
        history.append(str(partner.reply(history).text))
    for seed in range(20):
        player.reset({}, seed)
        assert player.say(history) == hidden


@pytest.mark.parametrize("name", NAMES)
def test_players_can_be_copied(name: PlayerName) -> None:
    player = PLAYERS[name](LEXICON)
    player.reset({}, 1)
    copied = pickle.loads(pickle.dumps(player))
    assert copied.say([OPENING]) == player.say([OPENING])
