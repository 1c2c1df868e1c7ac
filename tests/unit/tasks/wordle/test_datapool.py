"""The datapool wordle: games as samples, and as conversations with rewards."""

from __future__ import annotations

import functools
import itertools
import pickle
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from other_processes import assert_other_processes_make_the_same

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.protocols import Player
from rl4dialog.core.types import AGENT, Dialogue, Frame, Sample
from rl4dialog.tasks.playing import play
from rl4dialog.tasks.wordle.datapool import Wordle
from rl4dialog.tasks.wordle.partner import WordlePartner
from rl4dialog.tasks.wordle.players import PLAYERS
from rl4dialog.tasks.wordle.rules import OPENING, read
from rl4dialog.tasks.wordle.words import load_words

N = 200


def pool(split: str = "train", **args: Any) -> Wordle:
    return Wordle.prepare(split, **{"n_train": N, "n_val": N, "n_test": N, **args})


def samples(split: str = "train", **args: Any) -> list[Sample]:
    return [sample for sample, _ in pool(split, **args)]


def meta(sample: Sample) -> dict[str, Any]:
    assert sample.meta_data is not None
    return sample.meta_data


def guesses(sample: Sample) -> list[str]:
    return [*sample.references, *meta(sample)["continuation"][1::2]]


class Repeater(Player):
    """Says what a game contains."""

    def __init__(self, said: list[str]) -> None:
        self._said = said

    def reset(self, meta_info: dict[str, Any], seed: int) -> None:
        self._rest = iter(self._said)

    def say(self, history: list[str]) -> str:
        return next(self._rest)


def test_sizes_are_those_promised() -> None:
    assert [len(Wordle.prepare(split)) for split in ("train", "val", "test")] == [20_000, 500, 500]


def test_samples_ask_for_the_first_guess() -> None:
    games = samples(n_train=2000)
    assert len({sample.id for sample in games}) == 2000
    words = load_words(240)
    for sample in games:
        assert sample.prompt_or_input_text == f"{OPENING} <EOU>"
        assert meta(sample)["history"] == [OPENING] and meta(sample)["kind"] == "player"
        assert len(sample.references) == 1 and sample.references[0] in words
    assert {meta(sample)["word"] for sample in games} == set(words)


@pytest.mark.parametrize("duplicates", ["simple", "official"])
@pytest.mark.parametrize("letters", ["plain", "spaced"])
@pytest.mark.parametrize("games", ["player", "branching", "adversarial"])
def test_conversations_are_those_with_the_partner(games: str, letters: Any, duplicates: Any) -> None:
    made = pool(games=games, letters=letters, duplicates=duplicates)
    conversations = list(made.conversations())
    assert len(conversations) == N
    for (sample, _), conversation in zip(made, conversations, strict=True):
        meta_data = {name: value for name, value in meta(sample).items() if name != "continuation"}
        opening = Sample(sample.id, sample.prompt_or_input_text, [], meta_data)
        game = play(Repeater(guesses(sample)), WordlePartner(letters, duplicates), opening, 6, seed=0)
        assert conversation == game
        assert conversation.terminated
        assert [turn.text for turn in conversation.said] == [*sample.references, *meta(sample)["continuation"]]


def test_conversations_carry_the_rewards_of_the_agent() -> None:
    made: Dialogue
    for made in pool().conversations():
        rewards = [turn.reward for turn in made.said if turn.speaker == AGENT]
        won = made.outcome["success"] == 1.0
        assert rewards == [-1.0] * (len(rewards) - 1) + [0.0 if won else -1.0]
        assert all(turn.reward == 0 for turn in made.turns if turn.speaker != AGENT)
        assert won == (read(made.said[-2].text, "plain") == made.meta_data["word"])


def test_conversations_are_made_one_by_one() -> None:
    made = pool(n_train=5000)
    tracemalloc.start()
    first = list(itertools.islice(made.conversations(), 10))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(first) == 10 and peak < 2**20


def test_parts_of_a_pool_have_their_own_conversations() -> None:
    made = pool()
    first, second = made.split([0.5, 0.5])
    assert isinstance(first, Wordle) and isinstance(second, Wordle)
    assert [*first.conversations(), *second.conversations()] == list(made.conversations())
    assert second[0] == made[N // 2] and first.players == made.players


@pytest.mark.parametrize("kind", ["player", "branching"])
def test_games_beyond_the_samples_are_learned_from_all_the_same(kind: str) -> None:
    whole, cut = pool(games=kind, n_train=700), pool(games=kind, n_train=700, max_samples=300)
    assert len(cut) == 300 and list(cut) == list(whole)[:300]
    assert list(cut.conversations()) == list(whole.conversations())
    with pytest.raises(DataError, match="cannot be split into parts with more games than max_samples"):
        cut.split([0.5, 0.5])


def test_memory_does_not_grow_with_the_number_of_games() -> None:
    made = pool(n_train=6000, max_samples=100)
    tracemalloc.start()
    n = sum(1 for _ in made.conversations())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n == 6000 and peak < 3 * 2**20


def test_source_is_known_without_reading_the_games() -> None:
    key = pool().source_key
    assert key is not None and key == pool(max_samples=5).source_key
    others = ({"seed": 1}, {"n_train": 201}, {"player": "random"}, {"letters": "spaced"}, {"word_list": 40})
    assert all(pool(**args).source_key != key for args in others)
    assert pool().split([0.5, 0.5])[0].source_key is None


def test_pool_reads_like_a_list() -> None:
    made = pool()
    assert made[-1][0] == made[N - 1][0]
    assert made[0][0] == made[0][0]
    random.seed(1)
    assert made.sample() in samples()
    with pytest.raises(IndexError):
        made[N]


@pytest.mark.parametrize(("games", "kinds"), [
    ("player", {"player"}),
    ("branching", {"expert", "suboptimal"}),
    ("adversarial", {"expert", "adversary", "suboptimal"}),
])  # fmt: skip
def test_kinds_say_who_played(games: str, kinds: set[str]) -> None:
    assert {meta(sample)["kind"] for sample in samples(games=games)} == kinds
    for split in ("val", "test"):
        first = "player" if games == "player" else "expert"
        assert {meta(sample)["kind"] for sample in samples(split, games=games)} == {first}


def test_roles_have_the_players_that_are_chosen() -> None:
    for sample in samples(games="branching", expert="repeat", suboptimal="wrong", n_branches=1):
        if meta(sample)["kind"] == "expert":
            assert len(set(guesses(sample))) == 1
    returns = []
    for player, p in (("mixture", 0.0), ("mixture", 0.34), ("mixture", 1.0), ("info_gain", 0.0)):
        games = pool(player=player, p_consistent=p).conversations()
        returns.append(sum(turn.reward for game in games for turn in game.turns))
    assert returns == sorted(returns)


def test_counts_are_those_that_are_given() -> None:
    games = samples(n_train=2000, games="adversarial", n_adversarial=2, n_suboptimal=3)
    kinds = [meta(sample)["kind"] for sample in games]
    assert kinds.count("suboptimal") == pytest.approx(3 * kinds.count("expert"), abs=3)
    long = sum(kind == "expert" and len(guesses(sample)) > 2 for kind, sample in zip(kinds, games, strict=True))
    assert kinds.count("adversary") == pytest.approx(2 * long, abs=2)


def test_start_words_are_those_of_the_player_or_the_expert() -> None:
    for games in ("player", "branching"):
        made = samples(games=games, start_words=["music", "ocean"])
        firsts = {sample.references[0] for sample in made if meta(sample)["kind"] in ("player", "expert")}
        assert firsts == {"music", "ocean"}


@pytest.mark.parametrize("max_turns", [1, 2, 9])
@pytest.mark.parametrize("games", ["player", "branching", "adversarial"])
def test_games_have_at_most_max_turns(games: str, max_turns: int) -> None:
    assert max(len(guesses(sample)) for sample in samples(games=games, max_turns=max_turns)) == max_turns


def test_words_come_from_the_list_that_is_given(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("crane\nslate\nabout\n")
    for args, words in (({"word_list": 40}, load_words(40)), ({"path": str(path)}, ("crane", "slate", "about"))):
        for sample in samples(**args):
            assert {meta(sample)["word"], *guesses(sample)} <= set(words)


def test_same_seed_same_pool_and_other_seeds_and_splits_differ() -> None:
    assert samples() == samples()
    games = {
        tuple((*sample.references, *meta(sample)["continuation"]) for sample in samples(split, seed=seed))
        for split in ("train", "val", "test")
        for seed in (0, 1)
    }
    assert len(games) == 6


def test_more_games_leave_the_first_ones_alone() -> None:
    assert samples(n_train=400)[:10] == samples(n_train=10)


def test_other_processes_make_the_same_games() -> None:
    assert_other_processes_make_the_same(functools.partial(Wordle.prepare, "train", n_train=50, games="adversarial"))


def test_five_thousand_games_take_seconds() -> None:
    start = time.process_time()
    assert sum(1 for _ in Wordle.prepare("train", n_train=5000).conversations()) == 5000
    assert time.process_time() - start < 4


def test_formats_have_their_markup() -> None:
    def render(messages: list[dict[str, str]]) -> str:
        return "".join(f"[{message['role']}]{message['content']}" for message in messages) + "[assistant]"

    chat = pool("val", format="chat_template", render_chat=render)
    assert chat[0][0].prompt_or_input_text == f"[user]{OPENING}[assistant]" and chat.end_of_turn is None
    assert pool("val").end_of_turn == "<EOU>" and pool("val").frame() == Frame(" <EOU>", "<EOU>", ("<EOU>",))


def test_players_of_the_pool_play_its_games() -> None:
    made = pool("test", n_test=40, word_list=40, max_turns=5, p_consistent=1.0, duplicates="official", letters="spaced")
    assert list(made.players) == list(PLAYERS)
    won = {}
    for name, new_player in pickle.loads(pickle.dumps(made.players)).items():
        assert new_player() is not new_player()
        games = [
            play(new_player(), WordlePartner("spaced", "official"), sample, 5, seed)
            for seed, (sample, _) in enumerate(made)
        ]
        assert all(game.outcome["malformed"] == 0 for game in games)
        won[name] = sum(game.outcome["success"] for game in games) / len(games)
    assert min(won["mixture"], won["consistent"], won["info_gain"], won["monte_carlo"]) > 0.9
    assert max(won["random"], won["wrong"], won["repeat"]) < 0.4


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"n_train": 0}, "n_train must be a whole number of at least 1, not 0"),
        ({"max_turns": True}, "max_turns must be a whole number of at least 1, not True"),
        ({"word_list": 40, "path": "x.txt"}, "both of them is given"),
        ({"path": "/no/such/file"}, "/no/such/file cannot be read"),
        ({"start_words": ["musik"]}, "start_words: 'musik' is not in the list of 240 words"),
        ({"expert": "info_gain"}, "expert has no meaning with games: player; it belongs to branching or adversarial"),
        ({"n_adversarial": 2, "games": "branching"}, "n_adversarial has no meaning with games: branching"),
        ({"player": "mixture", "games": "adversarial"}, "player has no meaning with games: adversarial; it belongs to"),
        ({"format": "chat_template"}, "format 'chat_template' needs a tokenizer"),
    ],
)
def test_bad_argument_is_an_error_that_names_it(args: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Wordle.prepare("train", **args)


def test_unknown_split_is_an_error() -> None:
    with pytest.raises(DataError, match="unknown split 'dev'"):
        Wordle.prepare("dev")


@pytest.mark.parametrize(
    "args",
    [
        *({"n_train": 0}, {"word_list": 100}, {"games": "all"}, {"player": "best"}, {"p_consistent": 1.5}),
        *({"max_turns": 0}, {"n_branches": 0}, {"start_words": "music"}, {"letters": "wide"}, {"duplicates": "none"}),
    ],
)
def test_registry_checks_arguments_of_a_config(args: dict[str, Any]) -> None:
    DataPoolRegistry.check("wordle", {"n_train": 10, "word_list": 40, "start_words": ["music"], "games": "adversarial"})
    with pytest.raises(ConfigError, match=next(iter(args))):
        DataPoolRegistry.check("wordle", args)
