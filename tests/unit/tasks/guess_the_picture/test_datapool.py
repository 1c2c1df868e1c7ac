"""The datapool guess_the_picture: games as samples, and as conversations with rewards."""

import pickle

import pytest

from rl4dialog.core.types import AGENT, PARTNER
from rl4dialog.tasks.guess_the_picture.partner import GuessThePicture, is_penalized
from rl4dialog.tasks.guess_the_picture.scenes import OPEN_QUESTIONS, VIEWS, parse, scene_table

N = 200


def prepared(split="train", **args):
    return GuessThePicture.prepare(split, **{"n_train": N, "n_val": N, "n_test": N, **args})


def samples(split="train", **args):
    return [sample for sample, _ in prepared(split, **args)]


def questions(sample):
    return [*sample.references, *sample.meta_data["continuation"][1::2]]


def test_samples_ask_for_the_first_question_about_a_scene_that_the_guesser_does_not_expect():
    games = samples()
    assert len({sample.id for sample in games}) == N
    for sample in games:
        scene = scene_table(200, 0)[sample.meta_data["scene"]]
        assert scene.impression == 0 and scene.view in VIEWS
        assert sample.meta_data["history"] == [scene.view] and sample.prompt_or_input_text == f"{scene.view} <EOU>"
        assert len(sample.references) == 1 and all(map(parse, questions(sample)))
    assert len({sample.meta_data["scene"] for sample in games}) > 40


@pytest.mark.parametrize("kind", ["none", "hard", "soft", "conservative"])
def test_conversations_are_the_samples_with_the_rewards_of_the_game(kind):
    pool = prepared(yes_no_penalty=kind)
    found = list(pool.conversations())
    assert [game.id for game in found] == [sample.id for sample, _ in pool]
    for game, (sample, _) in zip(found, pool, strict=True):
        assert game.n_given == 1 and game.terminated and game.meta_data == sample.meta_data
        assert [turn.text for turn in game.said] == [*sample.references, *sample.meta_data["continuation"]]
        assert [turn.speaker for turn in game.turns] == [PARTNER, AGENT] * (len(game.turns) // 2) + [PARTNER]
        own, answers = game.said[::2], game.said[1::2]
        assert all(turn.reward == 0 for turn in answers) and game.turns[0].reward == 0
        for i, (turn, answer) in enumerate(zip(own, answers, strict=True)):
            paid = (-1.0 if i < len(own) - 1 else 0.0) + (-2.0 if is_penalized(answer.text, kind) else 0.0)
            assert turn.reward == paid
        assert game.outcome["success"] == 1.0 or len(own) == 10


def test_conversations_can_be_read_twice_and_in_parts():
    pool = prepared()
    assert list(pool.conversations()) == list(pool.conversations())
    first, second = pool.split([0.25, 0.75])
    assert [*first.conversations(), *second.conversations()] == list(pool.conversations())
    assert list(pickle.loads(pickle.dumps(first)).conversations()) == list(first.conversations())


def test_share_of_open_players_changes_the_games():
    opens = {question.text for question in OPEN_QUESTIONS}
    assert all(set(questions(sample)) <= opens for sample in samples(open_share=1))
    mixed = [set(questions(sample)) <= opens for sample in samples()]
    assert 0.4 * N < sum(mixed) < 0.65 * N
    assert sum(set(questions(sample)) <= opens for sample in samples(open_share=0.0)) < 0.1 * N


@pytest.mark.parametrize("max_rounds", [1, 4, 12])
def test_games_have_at_most_max_rounds(max_rounds):
    games = list(prepared(max_rounds=max_rounds, open_share=0.0).conversations())
    assert max(len(game.texts(AGENT)) for game in games) == max_rounds
    assert all(game.said[-2].reward == 0.0 for game in games)
