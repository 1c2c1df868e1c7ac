"""Penalties, guesser, partner and players."""

import math
import random
import statistics
import typing

import pytest

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PartnerReply
from rl4dialog.tasks.guess_the_picture.partner import (
    Guesser,
    GuessThePicture,
    GuessThePicturePartner,
    InformedPlayer,
    OpenPlayer,
    RandomPlayer,
    YesNoPenalty,
    all_values,
    data_player,
    is_penalized,
    values_left_by,
)
from rl4dialog.tasks.guess_the_picture.scenes import (
    ATTRIBUTES,
    NOT_SEEN,
    NOT_UNDERSTOOD,
    OPEN_QUESTIONS,
    PROBABLY,
    QUESTIONS,
    YES,
    answer,
    parse,
    scene_table,
)
from rl4dialog.tasks.playing import play

# The kinds that penalize an answer; each kind includes those before it.
ANSWERS = {
    "yes": ("hard", "soft", "conservative"),
    "No": ("hard", "soft", "conservative"),
    "yes , it is": ("soft", "conservative"),
    "no.": ("soft", "conservative"),
    "i think so": ("conservative",),
    "i do not think so": ("conservative",),
    "I don't know": ("conservative",),
    "i don\u2019t know": ("conservative",),
    "maybe": ("conservative",),
    "it looks red": ("conservative",),
    "i do not understand": ("conservative",),
    "red": (),
    "it is red": (),
    "snowy": (),  # contains "no", but not as a word
    "overlooks": (),
    "": (),
}


@pytest.mark.parametrize("text", ANSWERS)
@pytest.mark.parametrize("kind", typing.get_args(YesNoPenalty))
def test_each_kind_penalizes_its_answers(text, kind):
    assert is_penalized(text, kind) == (kind in ANSWERS[text])


def naive_ranks(scenes, view, statements):
    points = []
    for scene in scenes:
        score = scene.impression + int(scene.view == view)
        for name in ATTRIBUTES:
            about = [values for attribute, values in statements if attribute == name]
            score += int(all(scene.values[name] in values for values in about))
        points.append(score)
    best_first = sorted(range(len(scenes)), key=lambda i: -points[i])
    ranks = []
    for i in range(len(scenes)):
        positions = [position for position, j in enumerate(best_first, 1) if points[j] == points[i]]
        ranks.append(sum(positions) / len(positions))
    return ranks


@pytest.mark.parametrize("seed", range(12))
def test_rank_and_halving_are_those_of_a_naive_computation(seed):
    rng = random.Random(seed)
    scenes = scene_table(rng.choice([1, 2, 17, 200]), seed)
    hidden = rng.randrange(len(scenes))
    guesser = Guesser(scenes, hidden)
    statements = []
    start = naive_ranks(scenes, scenes[hidden].view, [])[hidden]
    assert guesser.rank == guesser.start_rank == start
    for _ in range(15):
        question, about = rng.choice(QUESTIONS), scenes[rng.choice([hidden, hidden, rng.randrange(len(scenes))])]
        said = answer(question, about, rng.random() < 0.5)  # at times about another scene, so that answers contradict
        guesser.hear(question.text, said)
        if question.values is None and not said.startswith("i "):
            statements.append((question.attribute, {about.values[question.attribute]}))
        elif question.values is not None and said.startswith(("yes", "i think so")):
            statements.append((question.attribute, set(question.values)))
        elif question.values is not None and said.startswith(("no", "i do not think so")):
            statements.append((question.attribute, set(ATTRIBUTES[question.attribute].values) - question.values))
        rank = naive_ranks(scenes, scenes[hidden].view, statements)[hidden]
        assert guesser.rank == rank
        assert guesser.is_halved == (2 * (rank - 1) <= start - 1)


@pytest.mark.parametrize("said", [("what is it", NOT_SEEN), ("who are you ?", YES), ("is it red ?", "red"), ("", "")])
def test_what_says_nothing_changes_nothing(said):
    guesser = Guesser(scene_table(50, 0), hidden=0)
    guesser.hear(*said)
    assert guesser.rank == guesser.start_rank and guesser.left == all_values()


BRIEF, IN_SENTENCES = 0, 1  # seeds
META = {"scene": 0, "table": {"n_scenes": 200, "seed": 0}}
# A blurred picture of five red dogs at a station, when it is foggy, with a girl: number and person are hard to see.
SCENE = scene_table(200, 0)[0]


def seeing_the_scene(kind="none", seed=BRIEF, **args):
    partner = PartnerRegistry.get("guess_the_picture", {"yes_no_penalty": kind, **args})
    partner.reset(META, seed)
    return partner


def asked(partner, *questions):
    history, replies = [SCENE.view], []
    for question in questions:
        replies.append(partner.reply([*history, question]))
        history += [question, replies[-1].text or ""]
    return replies


def test_game_is_over_when_the_distance_is_halved():
    questions = ["what is it ?", "what color is it ?", "how many are there ?", "where is it ?", "who is there ?"]
    partner = seeing_the_scene()
    replies = asked(partner, "is it fun ?", *questions)
    over = [reply.leaves for reply in replies].index(True)
    rewards = [reply.reward for reply in replies]
    assert rewards[:over] == [-1.0] * over and rewards[over] == 0.0
    assert replies[0] == PartnerReply(NOT_UNDERSTOOD, reward=-1.0)
    partner = seeing_the_scene()
    start = asked(partner, "is it fun ?") and partner.outcome()["rank"]
    asked(partner, *questions[: over - 1])
    assert partner.outcome()["success"] == 0.0 and partner.outcome()["rank"] - 1 > (start - 1) / 2
    asked(partner, questions[over - 1])
    assert partner.outcome()["success"] == 1.0 and partner.outcome()["rank"] - 1 <= (start - 1) / 2
    assert partner.outcome()["rounds"] == over + 1


ASKED = {
    (BRIEF, "is it foggy ?"): "yes",
    (IN_SENTENCES, "is it foggy ?"): "yes , it is",
    (BRIEF, "is it sunny ?"): "no",
    (BRIEF, "is there a child ?"): PROBABLY,
    (BRIEF, "who is there ?"): NOT_SEEN,
    (BRIEF, "is it fun ?"): NOT_UNDERSTOOD,
    (BRIEF, "where is it ?"): "at a station",
    (IN_SENTENCES, "where is it ?"): "it is at a station",
}


@pytest.mark.parametrize(
    ("kind", "n_penalized"), [("none", ""), ("hard", "- -"), ("soft", "---"), ("conservative", "------")]
)
def test_penalty_depends_on_the_answer(kind, n_penalized):
    for ((seed, question), said), mark in zip(ASKED.items(), n_penalized.ljust(len(ASKED)), strict=True):
        partner = seeing_the_scene(kind, seed)
        (reply,) = asked(partner, question)
        assert reply.text == said
        assert reply.reward == (0.0 if reply.leaves else -1.0) - (2.0 if mark == "-" else 0.0), (kind, said)


def test_half_of_the_games_are_answered_in_sentences():
    texts = [asked(seeing_the_scene(seed=seed), "is it foggy ?")[0].text for seed in range(400)]
    assert set(texts) == {"yes", "yes , it is"} and 160 < texts.count("yes") < 240


@pytest.mark.parametrize("meta_info", [{}, {"scene": 3}, {"scene": 200, "table": {"n_scenes": 200, "seed": 0}}])
def test_sample_without_a_scene_is_an_error(meta_info):
    with pytest.raises(DataError, match=r"meta_data\['scene'\].*use the datapool guess_the_picture"):
        GuessThePicturePartner().reset(meta_info, seed=0)


N_GAMES = 300
PLAYERS = [RandomPlayer, data_player, OpenPlayer, InformedPlayer]
POOL = [sample for sample, _ in GuessThePicture.prepare("test", n_test=N_GAMES)]


def play_games(player, **args):
    return [play(player, GuessThePicturePartner(**args), sample, 10, seed) for seed, sample in enumerate(POOL)]


@pytest.fixture(scope="module")
def games():
    return {kind: play_games(kind()) for kind in PLAYERS}


def returns(games):
    return [sum(turn.reward for turn in game.said) for game in games]


def questions_in(game):
    return game.texts(AGENT)


def test_players_are_ordered(games):
    means = [statistics.mean(returns(games[kind])) for kind in PLAYERS]
    errors = [statistics.stdev(returns(games[kind])) / math.sqrt(N_GAMES) for kind in PLAYERS]
    for i in range(len(PLAYERS) - 1):
        assert means[i + 1] - means[i] > 4 * math.hypot(errors[i], errors[i + 1]), PLAYERS[i]


def test_players_without_yes_no_questions_pay_no_penalty_for_them(games):
    opens = {question.text for question in OPEN_QUESTIONS}
    for game in games[OpenPlayer]:
        assert set(questions_in(game)) <= opens and len(set(questions_in(game))) == min(len(questions_in(game)), 6)
    assert returns(play_games(OpenPlayer(), yes_no_penalty="soft")) == returns(games[OpenPlayer])
    assert statistics.mean(returns(play_games(RandomPlayer(), yes_no_penalty="soft"))) < -10


def expected_loss(text, history, scenes):
    question, left = parse(text), values_left_by(history)
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


def test_informed_player_asks_the_best_question(games):
    scenes = scene_table(200, 0)
    for game in games[InformedPlayer][:2]:
        texts = [turn.text for turn in game.turns]
        for index in range(1, len(texts), 2):
            losses = {question.text: expected_loss(question.text, texts[:index], scenes) for question in QUESTIONS}
            assert losses[texts[index]] == pytest.approx(max(losses.values()))


def test_contradictory_answers_do_not_stop_the_informed_player():
    player = InformedPlayer()
    player.reset(POOL[0].meta_data or {}, 0)
    history = ["a close picture", "is it red ?", "yes", "is it red ?", "no"]
    assert parse(player.say(history)) is not None
