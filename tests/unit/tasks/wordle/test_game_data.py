"""Games as data: branches, and an adversary."""

from __future__ import annotations

import numpy as np
import pytest

from rl4dialog.tasks.wordle.game_data import (
    PlayedGames,
    adversarial_games,
    branching_games,
    generate_games,
    player_games,
)
from rl4dialog.tasks.wordle.games import NO_GUESS
from rl4dialog.tasks.wordle.lexicon import Lexicon
from rl4dialog.tasks.wordle.players import PLAYERS
from rl4dialog.tasks.wordle.words import load_words

LEXICON = Lexicon(load_words(240))
CHOOSE = {name: kind(LEXICON).choose for name, kind in PLAYERS.items()}
EXPERT, OTHER, ADVERSARY = CHOOSE["info_gain"], CHOOSE["mixture"], CHOOSE["repeat"]
MAKERS = {
    "player": player_games(LEXICON, OTHER, 6),
    "branching": branching_games(LEXICON, EXPERT, OTHER, 2, 6),
    "adversarial": adversarial_games(LEXICON, EXPERT, ADVERSARY, OTHER, 4, 1, 6),
}


def lengths(games: PlayedGames) -> np.ndarray:
    return (games.guesses != NO_GUESS).sum(axis=1)


def groups(games: PlayedGames, starts: np.ndarray) -> list[PlayedGames]:
    """Games that belong to one of the expert."""
    ends = [*starts[1:], len(games)]
    return [games[start:end] for start, end in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_larger_number_keeps_the_first_games_and_seeds_differ(kind: str) -> None:
    few, many = (generate_games(MAKERS[kind], n, seed=2) for n in (300, 700))
    other = generate_games(MAKERS[kind], 300, seed=3)
    for name in ("words", "guesses", "kinds"):
        assert (getattr(few, name) == getattr(many, name)[:300]).all()
    assert len(few) == 300 and (few.guesses != other.guesses).any()


@pytest.mark.parametrize("kind", MAKERS)
def test_games_end_with_the_word_or_after_all_turns(kind: str) -> None:
    games = generate_games(MAKERS[kind], 1000, seed=0)
    last = games.guesses[np.arange(1000), lengths(games) - 1]
    assert ((last == games.words) | (lengths(games) == 6)).all()
    assert (games.returns == np.where(last == games.words, 1, 0) - lengths(games)).all()


def test_every_turn_of_the_expert_has_its_branches() -> None:
    games = generate_games(MAKERS["branching"], 2000, seed=1)
    ends = np.flatnonzero(games.kinds == 0)
    for group in groups(games, np.array([0, *(ends[:-1] + 1)]))[:-1]:
        expert = group[-1:]
        assert group.kinds.tolist() == [1] * (len(group) - 1) + [0]
        assert len(group) == 1 + 2 * lengths(expert)[0]
        for i, branch in enumerate(group.guesses[:-1]):
            kept = i // 2
            assert (branch[:kept] == expert.guesses[0, :kept]).all()
            patterns = LEXICON.patterns[branch[:kept]]
            assert (patterns[:, group.words[i]] == patterns[:, expert.words[0]]).all(), "same guesses, same colours"


def test_words_of_branches_are_drawn_among_the_consistent_ones() -> None:
    lexicon = Lexicon(("aaaab", "aaaac", "aaaad", "aaaae", "zzzzz"))

    def expert(consistent: np.ndarray, guesses: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return np.full(len(guesses), 4)

    random = PLAYERS["random"](lexicon).choose
    games = generate_games(branching_games(lexicon, expert, random, 1, 2), 9000, seed=0)
    second = (games.kinds == 1) & (games.guesses[:, 0] == 4) & (np.roll(games.kinds, -1) == 0)
    counts = np.bincount(games.words[second], minlength=5)
    assert counts.sum() > 2000
    second &= games.words != 4  # those that branched off before the first turn
    counts = np.bincount(games.words[second], minlength=5)[:4] / second.sum()
    assert counts == pytest.approx(np.full(4, 0.25), abs=4 * np.sqrt(0.19 / second.sum()))


def test_adversary_continues_games_from_the_third_turn() -> None:
    games = generate_games(MAKERS["adversarial"], 2000, seed=1)
    for group in groups(games, np.flatnonzero(games.kinds == 0))[:-1]:
        expert = group[:1]
        is_long = lengths(expert)[0] >= 3
        assert group.kinds.tolist() == [0, *([1] * 4 if is_long else []), 2]
        for row in np.flatnonzero(group.kinds == 1):
            assert (group.guesses[row, :2] == expert.guesses[0, :2]).all()
            assert set(group.guesses[row, 2:]) <= set(expert.guesses[0, :2]), "it repeats"


def test_beginnings_of_the_expert_have_a_bad_mean_although_it_is_the_best() -> None:
    games = generate_games(MAKERS["adversarial"], 8000, seed=0)
    expert, adversary, other = (games[games.kinds == kind].returns for kind in range(3))
    assert (adversary == -6).all()
    assert expert.mean() > -1.9 > -3.5 > other.mean()
    assert np.concatenate([expert, adversary]).mean() < other.mean() - 0.1


def test_short_games_have_no_third_turn() -> None:
    games = generate_games(adversarial_games(LEXICON, EXPERT, ADVERSARY, OTHER, 4, 2, 2), 90, seed=0)
    assert games.kinds.tolist() == [0, 2, 2] * 30
