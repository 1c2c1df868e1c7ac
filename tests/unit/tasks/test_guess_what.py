"""Twenty questions: things, questions, partner, players and games as data."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from rl4dialog.core.errors import DataError
from rl4dialog.core.protocols import Player
from rl4dialog.core.types import AGENT, Dialogue, PartnerReply, Sample
from rl4dialog.data.pool import TextGenPool
from rl4dialog.tasks.guess_what import (
    GUESSES,
    NO,
    NOT_UNDERSTOOD,
    OPENING,
    PROPERTIES,
    QUESTIONS,
    THINGS,
    YES,
    BlindPlayer,
    CarelessPlayer,
    ConsistentPlayer,
    GuessWhat,
    GuessWhatPartner,
    InformationGainPlayer,
    Question,
    consistent_things,
    data_player,
    parse,
    win,
    with_article,
)
from rl4dialog.tasks.playing import play


def test_every_pair_of_things_differs() -> None:
    for one, other in itertools.combinations(THINGS, 2):
        assert any((one in things) != (other in things) for things in PROPERTIES.values()), (one, other)


def test_properties_have_known_things_and_divide_them() -> None:
    for words, things in PROPERTIES.items():
        assert things < set(THINGS), words
        assert len(things) >= 5, words


def test_some_facts() -> None:
    properties = {thing: {words for words, things in PROPERTIES.items() if thing in things} for thing in THINGS}
    assert properties["duck"] == {"is it alive", "can it fly", "does it make sounds", "do you find it in water"}
    assert properties["coin"] == {
        *("is it made by people", "is it made of metal", "is it round", "is it flat", "is it smaller than a hand"),
    }
    assert not PROPERTIES["is it alive"] & PROPERTIES["is it made by people"]
    assert not PROPERTIES["is it smaller than a hand"] & PROPERTIES["is it bigger than a car"]
    assert PROPERTIES["is it food"] < PROPERTIES["do you find it in most kitchens"]


ALL = [*QUESTIONS, *GUESSES.values()]


@pytest.mark.parametrize("question", ALL, ids=lambda question: question.words)
def test_every_question_is_read_back(question: Question) -> None:
    assert parse(question.text) is question
    assert question.text == f"{question.words} ?"


def test_there_is_a_question_for_every_property_and_a_guess_for_every_thing() -> None:
    assert {question.words: question.things for question in QUESTIONS} == PROPERTIES
    assert {thing: question.things for thing, question in GUESSES.items()} == {t: {t} for t in THINGS}
    assert [question.is_guess for question in ALL] == [False] * 12 + [True] * 40
    assert len({question.words for question in ALL}) == len(ALL)


@pytest.mark.parametrize(
    "text", ["Is it a DOG?", "is it a dog", "  is  it a dog ?", "is it a dog ??", "is it a dog? ", "is it\ta dog\n?\n"]
)
def test_case_spaces_and_question_mark_do_not_matter(text: str) -> None:
    assert parse(text) is GUESSES["dog"]


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "?", "dog", "is it an dog ?", "is it a cat ?", "is it a dog ? is it a bee ?", "is it a dog ."),
        *("is ? it a dog", "isitadog ?", "i say is it a dog ?", "is it a dog \ud800 ?", "<EOU>", "?" * 1000),
        *(YES, OPENING),
    ],
)
def test_anything_else_is_not_a_question(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize("thing, said", [("dog", "a dog"), ("apple", "an apple"), ("umbrella", "an umbrella")])
def test_articles(thing: str, said: str) -> None:
    assert with_article(thing) == said
    assert GUESSES[thing].text == f"is it {said} ?"
    assert win(thing) == f"yes , it is {said} !"


def test_vocabulary_is_small_and_in_lower_case() -> None:
    texts = [OPENING, YES, NO, NOT_UNDERSTOOD, *(question.text for question in ALL), *(win(thing) for thing in THINGS)]
    words = {word for text in texts for word in text.split(" ")}
    assert all(re.fullmatch(r"[a-z]+|[.,!?]", word) for word in words)
    assert len(words) <= 90


def test_consistent_things_agree_with_all_answers() -> None:
    assert consistent_things([OPENING]) == list(THINGS)
    history = [OPENING, "is it alive ?", YES, "can it fly ?", YES, "is it smaller than a hand ?", NO]
    assert consistent_things(history) == ["duck", "eagle"]
    assert consistent_things([*history, "is it a duck ?", NO]) == ["eagle"]
    assert consistent_things([*history, "is it a duck ?", NO, "is it alive ?", NO]) == []


def test_consistent_things_ignore_what_was_not_understood() -> None:
    assert consistent_things([OPENING, "is it nice ?", YES, "can it fly ?", NOT_UNDERSTOOD]) == list(THINGS)


def thinking_of(thing: str) -> GuessWhatPartner:
    partner = GuessWhatPartner()
    partner.reset({"thing": thing}, seed=0)
    return partner


@pytest.mark.parametrize("thing", THINGS)
def test_answers_are_those_of_the_table(thing: str) -> None:
    partner = thinking_of(thing)
    for words, things in PROPERTIES.items():
        assert partner.reply([OPENING, f"{words} ?"]) == ("yes" if thing in things else "no")
    assert partner.outcome() == {"success": 0.0}


def test_wrong_guess_is_denied_and_the_right_one_wins() -> None:
    partner = thinking_of("apple")
    assert partner.outcomes == ("success",) and partner.outcome() == {"success": 0.0}
    assert partner.reply([OPENING, "is it a dog ?"]) == "no"
    assert partner.outcome() == {"success": 0.0}
    reply = partner.reply([OPENING, "is it a dog ?", "no", "Is it an apple?"])
    assert reply == PartnerReply("yes , it is an apple !", leaves=True)
    assert partner.outcome() == {"success": 1.0}


@pytest.mark.parametrize("nonsense", ["", "dog", "is it nice ?", "yes", "is it an dog ?", "\0", "is it alive " * 9999])
def test_nonsense_is_not_understood(nonsense: str) -> None:
    assert thinking_of("dog").reply([OPENING, nonsense]) == "i do not understand"


def test_only_the_last_utterance_is_answered() -> None:
    assert thinking_of("dog").reply([OPENING, "is it a dog ?", "no", "is it alive ?"]) == "yes"


def test_reset_forgets_the_last_conversation() -> None:
    partner = thinking_of("dog")
    partner.reply(["is it a dog ?"])
    partner.reset({"thing": "bee"}, seed=0)
    assert partner.outcome() == {"success": 0.0}
    assert partner.reply(["is it a dog ?"]) == "no"


@pytest.mark.parametrize("meta_info", [{}, {"thing": "cat"}, {"thing": None}, {"thing": ["dog"]}])
def test_sample_without_a_thing_is_an_error(meta_info: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"meta_data\['thing'\].*not .*datapool guess_what \(things: dog, mouse"):
        GuessWhatPartner().reset(meta_info, seed=0)


def test_copies_go_on_where_they_were() -> None:
    partner = thinking_of("dog")
    partner.reply(["is it a dog ?"])
    for copied in (copy.deepcopy(partner), pickle.loads(pickle.dumps(partner))):
        assert copied.outcome() == {"success": 1.0} and copied.reply(["is it alive ?"]) == "yes"


N_GAMES = 2000
# Success and turns over 20,000 games.
MEASURED: dict[type[Player], tuple[float, float]] = {
    BlindPlayer: (0.183, 7.34),
    CarelessPlayer: (0.406, 7.47),
    data_player: (0.434, 7.57),
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
    assert success(play_games(data_player(share))) == pytest.approx(MEASURED[kind][0], abs=0.05)


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


N = 300


def samples(split: str = "train", **args: Any) -> list[Sample]:
    return [sample for sample, _ in GuessWhat.prepare(split, **{"n_train": N, "n_val": N, "n_test": N, **args})]


def meta(sample: Sample) -> dict[str, Any]:
    assert sample.meta_data is not None
    return sample.meta_data


def success_of(games: list[Sample]) -> float:
    return sum(meta(sample)["continuation"][-1].startswith("yes ,") for sample in games) / len(games)


def test_samples_ask_for_the_first_question() -> None:
    games = samples()
    assert len({sample.id for sample in games}) == N
    for sample in games:
        assert sample.prompt_or_input_text == f"{OPENING} <EOU>"
        assert meta(sample)["history"] == [OPENING]
        assert len(sample.references) == 1 and parse(sample.references[0]) is not None
    assert {meta(sample)["thing"] for sample in games} == set(THINGS)


def test_continuation_alternates_and_agrees_with_the_partner() -> None:
    partner = GuessWhatPartner()
    for sample in samples():
        partner.reset(meta(sample), seed=0)
        texts = [OPENING, *sample.references, *meta(sample)["continuation"]]
        assert len(texts) % 2 == 1 and 3 <= len(texts) <= 17
        for index in range(1, len(texts), 2):
            assert parse(texts[index]) is not None
            answer = partner.reply(texts[: index + 1])
            assert texts[index + 1] == (answer if isinstance(answer, str) else answer.text)
        assert partner.outcome()["success"] == texts[-1].startswith("yes ,")
        assert len(texts) == 17 or partner.outcome()["success"], "only lost games have all turns without a win"


def test_lost_games_keep_their_continuation() -> None:
    lost = [sample for sample in samples() if not meta(sample)["continuation"][-1].startswith("yes ,")]
    assert len(lost) > N / 3 and all(len(meta(sample)["continuation"]) == 15 for sample in lost)


def test_share_of_consistent_players_changes_the_games() -> None:
    careless, consistent = (samples(n_train=2000, consistent_share=share) for share in (0, 1.0))
    assert success_of(careless) < success_of(samples(n_train=2000)) < success_of(consistent)
    assert all(len(set(asked)) == len(asked) for asked in map(questions, consistent))
    assert not all(len(set(asked)) == len(asked) for asked in map(questions, careless))


def questions(sample: Sample) -> list[str]:
    return [*sample.references, *meta(sample)["continuation"][1::2]]


@pytest.mark.parametrize("max_turns", [1, 4, 12])
def test_games_have_at_most_max_turns(max_turns: int) -> None:
    lengths = {len(questions(sample)) for sample in samples(max_turns=max_turns)}
    assert max(lengths) == max_turns


def test_twenty_thousand_games_take_seconds() -> None:
    start = time.process_time()
    assert len(GuessWhat.prepare("train", n_train=20_000)) == 20_000
    assert time.process_time() - start < 20


def test_players_of_the_pool_play_its_games() -> None:
    pool = GuessWhat.prepare("test", n_test=150, max_turns=7)
    assert list(pool.players) == ["blind", "careless", "data", "consistent", "information_gain"]
    success, turns = {}, {}
    for name, new_player in pickle.loads(pickle.dumps(pool.players)).items():
        assert new_player() is not new_player()
        games = [play(new_player(), GuessWhatPartner(), sample, 7, seed) for seed, (sample, _) in enumerate(pool)]
        success[name] = sum(game.outcome["success"] for game in games) / len(games)
        turns[name] = max(len(game.said) for game in games) // 2
        assert all(parse(game.said[-2].text).is_guess for game in games)  # type: ignore[union-attr]
    assert min(success, key=lambda name: success[name]) == "blind"
    assert max(success, key=lambda name: success[name]) == "information_gain"
    assert set(turns.values()) == {7}
    assert pool.split([0.5])[0].players == pool.players


def test_other_pools_have_no_players() -> None:
    assert TextGenPool([]).players == {}
