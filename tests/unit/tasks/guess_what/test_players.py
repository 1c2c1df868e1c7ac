"""Scripted players: their success, and what distinguishes them."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable

import pytest

from rl4dialog.core.protocols import Player
from rl4dialog.core.types import AGENT, Dialogue, Sample
from rl4dialog.tasks.guess_what.partner import GuessWhatPartner
from rl4dialog.tasks.guess_what.players import (
    BlindPlayer,
    CarelessPlayer,
    ConsistentPlayer,
    InformationGainPlayer,
    MixedPlayer,
)
from rl4dialog.tasks.guess_what.questions import GUESSES, NO, OPENING, QUESTIONS, YES, consistent_things, parse
from rl4dialog.tasks.guess_what.things import THINGS
from rl4dialog.tasks.playing import play

N_GAMES = 2000
# Success and turns over 20,000 games.
MEASURED: dict[type[Player], tuple[float, float]] = {
    BlindPlayer: (0.183, 7.34),
    CarelessPlayer: (0.406, 7.47),
    MixedPlayer: (0.434, 7.57),
    ConsistentPlayer: (0.494, 7.70),
    InformationGainPlayer: (1.000, 5.85),
}


def play_games(player: Player, n_games: int = N_GAMES, max_turns: int = 8) -> list[Dialogue]:
    rng = random.Random(1)
    samples = [Sample(i, OPENING, [], {"history": [OPENING], "thing": rng.choice(THINGS)}) for i in range(n_games)]
    return [play(player, GuessWhatPartner(), sample, max_turns, seed) for seed, sample in enumerate(samples)]


@pytest.fixture(scope="module")
def games() -> dict[type[Player], list[Dialogue]]:
    return {kind: play_games(kind()) for kind in MEASURED}


def success(games: list[Dialogue]) -> float:
    return statistics.mean(game.outcome["success"] for game in games)


def asked(game: Dialogue) -> list[str]:
    return game.texts(AGENT)


@pytest.mark.parametrize("kind", MEASURED)
def test_success_and_turns_are_those_measured(kind: type[Player], games: dict[type[Player], list[Dialogue]]) -> None:
    expected, turns = MEASURED[kind]
    # Four standard errors of both measurements.
    error = 4 * math.sqrt(expected * (1 - expected) * (1 / N_GAMES + 1 / 20000))
    assert success(games[kind]) == pytest.approx(expected, abs=error)
    assert statistics.mean(len(asked(game)) for game in games[kind]) == pytest.approx(turns, abs=0.15)


def test_players_are_ordered(games: dict[type[Player], list[Dialogue]]) -> None:
    for worse, better in itertools.pairwise(MEASURED):
        assert success(games[worse]) < success(games[better])


def test_blind_guesses_succeed_as_often_as_computed(games: dict[type[Player], list[Dialogue]]) -> None:
    assert success(games[BlindPlayer]) == pytest.approx(1 - (39 / 40) ** 8, abs=0.035)
    assert {text for game in games[BlindPlayer] for text in asked(game)} == {q.text for q in GUESSES.values()}


@pytest.mark.parametrize("kind", MEASURED)
def test_players_speak_the_language_of_the_game(kind: type[Player], games: dict[type[Player], list[Dialogue]]) -> None:
    for game in games[kind][:200]:
        *before, last = map(parse, asked(game))
        assert all(before) and last is not None
        assert last.is_guess, "a game ends with a guess, won or lost"
        assert (game.ended_by == "partner") == (game.outcome["success"] == 1.0)


def guesses(game: Dialogue) -> list[tuple[int, bool]]:
    """The turn of each guess, from 1, and whether it agrees with all answers before it."""
    texts = [turn.text for turn in game.turns]
    found = []
    for index in range(1, len(texts), 2):
        question = parse(texts[index])
        assert question is not None
        if question.is_guess:
            found.append(((index + 1) // 2, question.things <= set(consistent_things(texts[:index]))))
    return found


@pytest.mark.parametrize("kind", [CarelessPlayer, ConsistentPlayer, InformationGainPlayer])
def test_guesses_never_contradict_an_answer(kind: type[Player], games: dict[type[Player], list[Dialogue]]) -> None:
    assert all(consistent for game in games[kind] for _, consistent in guesses(game))


@pytest.mark.parametrize("kind", [ConsistentPlayer, InformationGainPlayer])
def test_good_players_never_ask_twice(kind: type[Player], games: dict[type[Player], list[Dialogue]]) -> None:
    assert all(len(set(asked(game))) == len(asked(game)) for game in games[kind])


def test_careless_players_repeat_and_guess_early(games: dict[type[Player], list[Dialogue]]) -> None:
    careless = games[CarelessPlayer]
    assert statistics.mean(len(set(asked(game))) < len(asked(game)) for game in careless) > 0.5
    first = Counter(parse(asked(game)[0]).is_guess for game in careless)  # type: ignore[union-attr]
    assert first[True] / N_GAMES == pytest.approx(CarelessPlayer.guess_share, abs=0.04)


def test_consistent_players_ask_for_all_properties_alike(games: dict[type[Player], list[Dialogue]]) -> None:
    first = Counter(asked(game)[0] for game in games[ConsistentPlayer])
    assert set(first) == {question.text for question in QUESTIONS}
    assert max(first.values()) < 1.5 * N_GAMES / len(QUESTIONS)


def entropy_after(text: str, things: list[str]) -> float:
    """Expected entropy in bits of the thing, after the answer to a question."""
    question = parse(text)
    assert question is not None
    parts = [sum((thing in question.things) == answer for thing in things) for answer in (True, False)]
    return sum(part / len(things) * math.log2(part) for part in parts if part)


def test_information_gain_player_asks_the_best_question(games: dict[type[Player], list[Dialogue]]) -> None:
    everything = [question.text for question in (*QUESTIONS, *GUESSES.values())]
    for game in games[InformationGainPlayer][:100]:
        texts = [turn.text for turn in game.turns]
        for index in range(1, min(len(texts), 15), 2):  # the last turn is always a guess
            things = consistent_things(texts[:index])
            best = min(entropy_after(text, things) for text in everything)
            assert entropy_after(texts[index], things) == pytest.approx(best)


def test_information_gain_player_finds_every_thing() -> None:
    for index, thing in enumerate(THINGS):
        sample = Sample(0, OPENING, [], {"history": [OPENING], "thing": thing})
        game = play(InformationGainPlayer(), GuessWhatPartner(), sample, 8, seed=index)
        assert game.outcome == {"success": 1.0}, thing


@pytest.mark.parametrize("share, kind", [(0.0, CarelessPlayer), (1.0, ConsistentPlayer)])
def test_mixture_of_one_kind_succeeds_like_it(share: float, kind: type[Player]) -> None:
    assert success(play_games(MixedPlayer(share))) == pytest.approx(MEASURED[kind][0], abs=0.05)


@pytest.mark.parametrize("kind", MEASURED)
@pytest.mark.parametrize("max_turns", [1, 3, 20])
def test_every_player_guesses_on_the_last_turn(kind: Callable[..., Player], max_turns: int) -> None:
    for game in play_games(kind(max_turns=max_turns), 30, max_turns):
        last = parse(asked(game)[-1])
        assert last is not None and last.is_guess
        assert len(asked(game)) == max_turns or game.outcome["success"] == 1.0


@pytest.mark.parametrize("kind", MEASURED)
def test_same_seed_same_words(kind: type[Player]) -> None:
    def words(player: Player, seed: int) -> list[str]:
        player.reset({}, seed)
        return [player.say([OPENING]) for _ in range(8)]

    player = kind()
    assert words(player, 3) == words(player, 3) == words(kind(), 3)
    assert len({tuple(words(player, seed)) for seed in range(20)}) > 10


@pytest.mark.parametrize("kind", MEASURED)
def test_contradictory_answers_do_not_stop_a_player(kind: type[Player]) -> None:
    player = kind()
    player.reset({}, 0)
    assert parse(player.say([OPENING, "is it alive ?", YES, "is it alive ?", NO])) is not None
