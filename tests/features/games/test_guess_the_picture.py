"""Penalties, guesser, partner and players."""

import functools
import math
import pickle
import random
import statistics
import typing

import pytest
from other_processes import assert_other_processes_make_the_same

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER, PartnerReply
from rl4dialog.features.games.guess_the_picture import (
    ATTRIBUTES,
    NO,
    NOT_SEEN,
    NOT_UNDERSTOOD,
    OPEN_QUESTIONS,
    PROBABLY,
    PROBABLY_NOT,
    QUESTIONS,
    VIEWS,
    YES,
    YES_NO_QUESTIONS,
    Guesser,
    GuessThePicture,
    GuessThePicturePartner,
    InformedPlayer,
    OpenPlayer,
    RandomPlayer,
    Scene,
    YesNoPenalty,
    all_values,
    answer,
    data_player,
    is_penalized,
    parse,
    scene_table,
    table_of,
    values_left,
    values_left_by,
)
from rl4dialog.tasks.playing import play


def test_seed_decides_and_a_longer_table_starts_alike():
    assert scene_table(30, 1) == scene_table(60, 1)[:30] != scene_table(30, 2)
    assert_other_processes_make_the_same(functools.partial(scene_table, 20, 3))


@pytest.mark.parametrize(
    "meta_info",
    [
        *({}, {"scene": 0}, {"scene": 5, "table": {"n_scenes": 5, "seed": 0}}, {"scene": 0, "table": [5, 0]}),
        *({"scene": "0", "table": {"n_scenes": 5, "seed": 0}}, {"scene": 0, "table": {"n_scenes": 5}}),
        *({"scene": True, "table": {"n_scenes": 5, "seed": 0}}, {"scene": -1, "table": {"n_scenes": 5, "seed": 0}}),
    ],
)
def test_sample_without_a_scene_has_no_table(meta_info):
    assert table_of(meta_info) is None


AT_NIGHT = Scene(
    "a picture at night",
    {"thing": "a dog", "color": "brown", "number": "two", "place": "in a park", "weather": "snowy", "person": "a girl"},
    impression=0,
)


def test_there_is_an_open_question_a_group_and_each_value_for_every_attribute():
    assert all(parse(q.text) is parse(q.text.upper().replace(" ?", "?")) is q for q in QUESTIONS)
    n_values = sum(len(attribute.values) for attribute in ATTRIBUTES.values())
    assert (len(OPEN_QUESTIONS), len(YES_NO_QUESTIONS)) == (6, 6 + n_values)
    assert len({question.words for question in QUESTIONS}) == len(QUESTIONS)
    assert [question.is_broad for question in QUESTIONS].count(True) == 6


@pytest.mark.parametrize(
    ("asked", "brief", "in_sentences"),
    [
        ("what is it ?", "a dog", "it is a dog"),
        ("how many are there ?", "two", "there are two"),
        ("where is it ?", "in a park", "it is in a park"),
        ("who is there ?", "a girl", "there is a girl"),
        ("is it an animal ?", "yes", "yes , it is"),
        ("is it a car ?", "no", "no , it is not"),
        ("are there two ?", "yes", "yes , there are"),
        ("are there more than four ?", "no", "no , there are not"),
        ("is there a child ?", "yes", "yes , there is"),
        ("what color is it ?", NOT_SEEN, NOT_SEEN),
        ("is it brown ?", NOT_SEEN, NOT_SEEN),
        ("is it a dark color ?", PROBABLY, PROBABLY),
        ("how is the weather ?", NOT_SEEN, NOT_SEEN),
        ("is it snowy ?", NOT_SEEN, NOT_SEEN),
        ("is the weather bad ?", PROBABLY, PROBABLY),
    ],
)
def test_answers_about_a_picture_at_night(asked, brief, in_sentences):
    question = parse(asked)
    assert answer(question, AT_NIGHT, False) == brief
    assert answer(question, AT_NIGHT, True) == in_sentences


@pytest.mark.parametrize("in_sentences", [False, True])
def test_answers_are_understood_as_what_is_true(in_sentences):
    for scene in scene_table(60, 0):
        for question in QUESTIONS:
            left = values_left(question, answer(question, scene, in_sentences))
            assert (left is not None) == question.is_answered(VIEWS[scene.view])
            if left is not None:
                assert scene.values[question.attribute] in left < set(ATTRIBUTES[question.attribute].values)


def test_open_answers_leave_one_value_and_others_a_part():
    color, dark, red = map(parse, ("what color is it ?", "is it a dark color ?", "is it red ?"))
    others = {"yellow", "white", "black", "brown", "blue"}
    assert values_left(color, "red") == values_left(color, "it is red") == {"red"}
    assert values_left(dark, PROBABLY) == {"black", "brown", "blue"}
    assert values_left(dark, "no , it is not") == values_left(dark, PROBABLY_NOT) == {"red", "yellow", "white"}
    assert values_left(red, NO) == others
    for question in (color, dark, red):
        assert all(values_left(question, text) is None for text in (NOT_SEEN, NOT_UNDERSTOOD, "", "a dog"))
    assert values_left(color, YES) is None and values_left(red, "red") is None


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
        for i, (turn, heard) in enumerate(zip(own, answers, strict=True)):
            paid = (-1.0 if i < len(own) - 1 else 0.0) + (-2.0 if is_penalized(heard.text, kind) else 0.0)
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
