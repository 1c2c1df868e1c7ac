"""Scripted players: how well they play, and what distinguishes them."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from rl4dialog.core.protocols import Player
from rl4dialog.core.types import AGENT, Dialogue
from rl4dialog.tasks.guess_the_picture.datapool import GuessThePicture
from rl4dialog.tasks.guess_the_picture.guesser import Guesser, values_left_by
from rl4dialog.tasks.guess_the_picture.partner import GuessThePicturePartner
from rl4dialog.tasks.guess_the_picture.players import InformedPlayer, MixedPlayer, OpenPlayer, RandomPlayer
from rl4dialog.tasks.guess_the_picture.questions import OPEN_QUESTIONS, QUESTIONS, answer, parse
from rl4dialog.tasks.guess_the_picture.scenes import VIEWS, Scene, scene_table
from rl4dialog.tasks.playing import play

N_GAMES = 300
PLAYERS: list[type[Player]] = [RandomPlayer, MixedPlayer, OpenPlayer, InformedPlayer]
POOL = [sample for sample, _ in GuessThePicture.prepare("test", n_test=N_GAMES)]


def play_games(player: Player, **args: Any) -> list[Dialogue]:
    return [play(player, GuessThePicturePartner(**args), sample, 10, seed) for seed, sample in enumerate(POOL)]


@pytest.fixture(scope="module")
def games() -> dict[type[Player], list[Dialogue]]:
    return {kind: play_games(kind()) for kind in PLAYERS}


def returns(games: list[Dialogue]) -> list[float]:
    return [sum(turn.reward for turn in game.said) for game in games]


def asked(game: Dialogue) -> list[str]:
    return game.texts(AGENT)


def test_players_are_ordered(games: dict[type[Player], list[Dialogue]]) -> None:
    means = [statistics.mean(returns(games[kind])) for kind in PLAYERS]
    errors = [statistics.stdev(returns(games[kind])) / math.sqrt(N_GAMES) for kind in PLAYERS]
    for i in range(len(PLAYERS) - 1):
        assert means[i + 1] - means[i] > 4 * math.hypot(errors[i], errors[i + 1]), PLAYERS[i]


@pytest.mark.parametrize("kind", PLAYERS)
def test_players_speak_the_language_of_the_game(kind: type[Player], games: dict[type[Player], list[Dialogue]]) -> None:
    for game in games[kind]:
        assert all(parse(text) for text in asked(game))
        assert game.outcome["rounds"] == len(asked(game)) <= 10
        assert sum(turn.reward for turn in game.said) == 1 - len(asked(game))
        assert game.outcome["success"] == 1.0 or len(asked(game)) == 10


def test_players_without_yes_no_questions_pay_no_penalty_for_them(games: dict[type[Player], list[Dialogue]]) -> None:
    opens = {question.text for question in OPEN_QUESTIONS}
    for game in games[OpenPlayer]:
        assert set(asked(game)) <= opens and len(set(asked(game))) == min(len(asked(game)), 6)
    assert returns(play_games(OpenPlayer(), yes_no_penalty="soft")) == returns(games[OpenPlayer])
    assert statistics.mean(returns(play_games(RandomPlayer(), yes_no_penalty="soft"))) < -10


def test_open_player_repeats_itself_when_it_has_asked_everything() -> None:
    player = OpenPlayer()
    player.reset({}, 0)
    assert parse(player.say(["a close picture", *(question.text for question in OPEN_QUESTIONS)])) in OPEN_QUESTIONS


def expected_loss(text: str, history: list[str], scenes: tuple[Scene, ...]) -> float:
    """Points that the answer takes from scenes, as a mean over the scenes that agree with the history."""
    question, left = parse(text), values_left_by(history)
    assert question is not None
    possible = [
        i
        for i, scene in enumerate(scenes)
        if scene.view == history[0] and all(scene.values[name] in values for name, values in left.items())
    ]
    total = 0
    for i in possible:
        guesser = Guesser(scenes, i)
        for said, answered in zip(history[1::2], history[2::2], strict=True):
            guesser.hear(said, answered)
        before = sum(guesser._points)
        guesser.hear(text, answer(question, scenes[i], False))
        total += before - sum(guesser._points)
    return total / len(possible)


def test_informed_player_asks_the_best_question(games: dict[type[Player], list[Dialogue]]) -> None:
    scenes = scene_table(200, 0)
    for game in games[InformedPlayer][:2]:
        texts = [turn.text for turn in game.turns]
        for index in range(1, len(texts), 2):
            losses = {question.text: expected_loss(question.text, texts[:index], scenes) for question in QUESTIONS}
            assert losses[texts[index]] == pytest.approx(max(losses.values()))


def test_informed_player_asks_nothing_that_cannot_be_seen(games: dict[type[Player], list[Dialogue]]) -> None:
    for game in games[InformedPlayer]:
        for question in map(parse, asked(game)):
            assert question is not None and question.is_answered(VIEWS[game.turns[0].text])


@pytest.mark.parametrize(("share", "kind"), [(0.0, RandomPlayer), (1.0, OpenPlayer)])
def test_mixture_of_one_kind_plays_like_it(
    share: float, kind: type[Player], games: dict[type[Player], list[Dialogue]]
) -> None:
    found, expected = returns(play_games(MixedPlayer(share))), returns(games[kind])
    error = math.hypot(statistics.stdev(found), statistics.stdev(expected)) / math.sqrt(N_GAMES)
    assert statistics.mean(found) == pytest.approx(statistics.mean(expected), abs=4 * error)


@pytest.mark.parametrize("kind", PLAYERS)
def test_same_seed_same_words(kind: type[Player]) -> None:
    meta_data = POOL[0].meta_data
    assert meta_data is not None

    def words(player: Player, seed: int) -> list[str]:
        player.reset(meta_data, seed)
        return [player.say(["a close picture"]) for _ in range(8)]

    player = kind()
    assert words(player, 3) == words(player, 3) == words(kind(), 3)


def test_contradictory_answers_do_not_stop_the_informed_player() -> None:
    player = InformedPlayer()
    player.reset(POOL[0].meta_data or {}, 0)
    history = ["a close picture", "is it red ?", "yes", "is it red ?", "no"]
    assert parse(player.say(history)) is not None
