"""Twenty questions: things, questions, partner, players and games as data."""

import math
import pickle
import random
import statistics
from collections import Counter

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PartnerReply, Sample
from rl4dialog.tasks import guess_what
from rl4dialog.tasks.playing import play

ALL = [*guess_what.QUESTIONS, *guess_what.GUESSES.values()]


def test_there_is_a_question_for_every_property_and_a_guess_for_every_thing():
    assert all(guess_what.parse(question.text) is question for question in ALL)
    assert {question.words: question.things for question in guess_what.QUESTIONS} == guess_what.PROPERTIES
    assert {thing: question.things for thing, question in guess_what.GUESSES.items()} == {
        t: {t} for t in guess_what.THINGS
    }
    assert [question.is_guess for question in ALL] == [False] * 12 + [True] * 40
    assert len({question.words for question in ALL}) == len(ALL)


@pytest.mark.parametrize(
    "text", ["Is it a DOG?", "is it a dog", "  is  it a dog ?", "is it a dog ??", "is it a dog? ", "is it\ta dog\n?\n"]
)
def test_case_spaces_and_question_mark_do_not_matter(text):
    assert guess_what.parse(text) is guess_what.GUESSES["dog"]


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "?", "dog", "is it an dog ?", "is it a cat ?", "is it a dog ? is it a bee ?", "is it a dog ."),
        *("is ? it a dog", "isitadog ?", "i say is it a dog ?", "is it a dog \ud800 ?", "<EOU>", "?" * 1000),
        *(guess_what.YES, guess_what.OPENING),
    ],
)
def test_anything_else_is_not_a_question(text):
    assert guess_what.parse(text) is None


def test_consistent_things_agree_with_all_answers():
    assert guess_what.consistent_things([guess_what.OPENING]) == list(guess_what.THINGS)
    history = [
        guess_what.OPENING,
        "is it alive ?",
        guess_what.YES,
        "can it fly ?",
        guess_what.YES,
        "is it smaller than a hand ?",
        guess_what.NO,
    ]
    assert guess_what.consistent_things(history) == ["duck", "eagle"]
    assert guess_what.consistent_things([*history, "is it a duck ?", guess_what.NO]) == ["eagle"]
    assert (
        guess_what.consistent_things([*history, "is it a duck ?", guess_what.NO, "is it alive ?", guess_what.NO]) == []
    )


def thinking_of(thing):
    partner = guess_what.GuessWhatPartner()
    partner.reset({"thing": thing}, seed=0)
    return partner


def test_wrong_guess_is_denied_and_the_right_one_wins():
    partner = thinking_of("apple")
    assert partner.reply([guess_what.OPENING, "is it nice ?"]) == "i do not understand"
    assert partner.outcomes == ("success",) and partner.outcome() == {"success": 0.0}
    assert partner.reply([guess_what.OPENING, "is it a dog ?"]) == "no"
    assert partner.outcome() == {"success": 0.0}
    reply = partner.reply([guess_what.OPENING, "is it a dog ?", "no", "Is it an apple?"])
    assert reply == PartnerReply("yes , it is an apple !", leaves=True)
    assert partner.outcome() == {"success": 1.0}


@pytest.mark.parametrize("meta_info", [{}, {"thing": "cat"}, {"thing": None}, {"thing": ["dog"]}])
def test_sample_without_a_thing_is_an_error(meta_info):
    with pytest.raises(DataError, match=r"meta_data\['thing'\].*not .*datapool guess_what \(things: dog, mouse"):
        guess_what.GuessWhatPartner().reset(meta_info, seed=0)


N_GAMES = 2000
# Success and turns over 20,000 games.
MEASURED = {
    guess_what.BlindPlayer: (0.183, 7.34),
    guess_what.CarelessPlayer: (0.406, 7.47),
    guess_what.data_player: (0.434, 7.57),
    guess_what.ConsistentPlayer: (0.494, 7.70),
    guess_what.InformationGainPlayer: (1.000, 5.85),
}


def play_games(player, n_games=N_GAMES, max_turns=8):
    rng = random.Random(1)
    samples = [
        Sample(i, guess_what.OPENING, [], {"history": [guess_what.OPENING], "thing": rng.choice(guess_what.THINGS)})
        for i in range(n_games)
    ]
    return [play(player, guess_what.GuessWhatPartner(), sample, max_turns, seed) for seed, sample in enumerate(samples)]


@pytest.fixture(scope="module")
def games():
    return {kind: play_games(kind()) for kind in MEASURED}


def success(games):
    return statistics.mean(game.outcome["success"] for game in games)


def asked(game):
    return game.texts(AGENT)


@pytest.mark.parametrize("kind", MEASURED)
def test_success_and_turns_are_those_measured(kind, games):
    expected, turns = MEASURED[kind]
    # Four standard errors of both measurements.
    error = 4 * math.sqrt(expected * (1 - expected) * (1 / N_GAMES + 1 / 20000))
    assert success(games[kind]) == pytest.approx(expected, abs=error)
    assert statistics.mean(len(asked(game)) for game in games[kind]) == pytest.approx(turns, abs=0.15)


def test_blind_guesses_succeed_as_often_as_computed(games):
    assert success(games[guess_what.BlindPlayer]) == pytest.approx(1 - (39 / 40) ** 8, abs=0.035)
    assert {text for game in games[guess_what.BlindPlayer] for text in asked(game)} == {
        q.text for q in guess_what.GUESSES.values()
    }


@pytest.mark.parametrize("kind", MEASURED)
def test_players_speak_the_language_of_the_game(kind, games):
    for game in games[kind][:200]:
        *before, last = map(guess_what.parse, asked(game))
        assert all(before) and last is not None
        assert last.is_guess, "a game ends with a guess, won or lost"
        assert (game.ended_by == "partner") == (game.outcome["success"] == 1.0)


def guesses(game):
    texts = [turn.text for turn in game.turns]
    found = []
    for index in range(1, len(texts), 2):
        question = guess_what.parse(texts[index])
        if question.is_guess:
            found.append(((index + 1) // 2, question.things <= set(guess_what.consistent_things(texts[:index]))))
    return found


@pytest.mark.parametrize(
    "kind", [guess_what.CarelessPlayer, guess_what.ConsistentPlayer, guess_what.InformationGainPlayer]
)
def test_guesses_never_contradict_an_answer(kind, games):
    assert all(consistent for game in games[kind] for _, consistent in guesses(game))


@pytest.mark.parametrize("kind", [guess_what.ConsistentPlayer, guess_what.InformationGainPlayer])
def test_good_players_never_ask_twice(kind, games):
    assert all(len(set(asked(game))) == len(asked(game)) for game in games[kind])


def test_careless_players_repeat_and_guess_early(games):
    careless = games[guess_what.CarelessPlayer]
    assert statistics.mean(len(set(asked(game))) < len(asked(game)) for game in careless) > 0.5
    first = Counter(guess_what.parse(asked(game)[0]).is_guess for game in careless)
    assert first[True] / N_GAMES == pytest.approx(guess_what.CarelessPlayer.guess_share, abs=0.04)


def entropy_after(text, things):
    question = guess_what.parse(text)
    parts = [sum((thing in question.things) == answer for thing in things) for answer in (True, False)]
    return sum(part / len(things) * math.log2(part) for part in parts if part)


def test_information_gain_player_asks_the_best_question(games):
    everything = [question.text for question in (*guess_what.QUESTIONS, *guess_what.GUESSES.values())]
    for game in games[guess_what.InformationGainPlayer][:100]:
        texts = [turn.text for turn in game.turns]
        for index in range(1, min(len(texts), 15), 2):  # the last turn is always a guess
            things = guess_what.consistent_things(texts[:index])
            best = min(entropy_after(text, things) for text in everything)
            assert entropy_after(texts[index], things) == pytest.approx(best)


@pytest.mark.parametrize("kind", MEASURED)
def test_contradictory_answers_do_not_stop_a_player(kind):
    player = kind()
    player.reset({}, 0)
    assert (
        guess_what.parse(
            player.say([guess_what.OPENING, "is it alive ?", guess_what.YES, "is it alive ?", guess_what.NO])
        )
        is not None
    )


N = 300


def samples(split="train", **args):
    return [
        sample for sample, _ in guess_what.GuessWhat.prepare(split, **{"n_train": N, "n_val": N, "n_test": N, **args})
    ]


def test_continuation_alternates_and_agrees_with_the_partner():
    partner = guess_what.GuessWhatPartner()
    for sample in samples():
        partner.reset(sample.meta_data, seed=0)
        texts = [guess_what.OPENING, *sample.references, *sample.meta_data["continuation"]]
        assert len(texts) % 2 == 1 and 3 <= len(texts) <= 17
        for index in range(1, len(texts), 2):
            assert guess_what.parse(texts[index]) is not None
            answer = partner.reply(texts[: index + 1])
            assert texts[index + 1] == (answer if isinstance(answer, str) else answer.text)
        assert partner.outcome()["success"] == texts[-1].startswith("yes ,")
        assert len(texts) == 17 or partner.outcome()["success"], "only lost games have all turns without a win"


def test_players_of_the_pool_play_its_games():
    pool = guess_what.GuessWhat.prepare("test", n_test=150, max_turns=7)
    assert list(pool.players) == ["blind", "careless", "data", "consistent", "information_gain"]
    success, turns = {}, {}
    for name, new_player in pickle.loads(pickle.dumps(pool.players)).items():
        assert new_player() is not new_player()
        games = [
            play(new_player(), guess_what.GuessWhatPartner(), sample, 7, seed) for seed, (sample, _) in enumerate(pool)
        ]
        success[name] = sum(game.outcome["success"] for game in games) / len(games)
        turns[name] = max(len(game.said) for game in games) // 2
        assert all(guess_what.parse(game.said[-2].text).is_guess for game in games)
    assert min(success, key=lambda name: success[name]) == "blind"
    assert max(success, key=lambda name: success[name]) == "information_gain"
    assert set(turns.values()) == {7}
    assert pool.split([0.5])[0].players == pool.players
