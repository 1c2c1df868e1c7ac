"""Games as data: branches, an adversary, and the datapool."""

import csv
import json
import pickle
import subprocess
import sys
import tracemalloc
from functools import partial

import numpy as np
import pytest
from pages import EXAMPLES, yaml_of

from rl4dialog.catalog import DataPoolRegistry, WordlePlayerRegistry
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.plugins import load_imports
from rl4dialog.core.protocols import Player
from rl4dialog.core.types import AGENT, Sample
from rl4dialog.data.conversations.pool import LoggedConversations
from rl4dialog.features.games.wordle import datapool
from rl4dialog.features.games.wordle.players import NAMES, NO_GUESS, Game, WordlePartner
from rl4dialog.features.games.wordle.rules import Lexicon, load_words
from rl4dialog.features.games.wordle.rules import colours as rules_colours
from rl4dialog.tasks.playing import play

LEXICON, LEXICON_40 = Lexicon(load_words(240)), Lexicon(load_words(40))
CHOOSE = {name: Game(LEXICON).player(name).choose for name in NAMES}
ROLES = {"expert": CHOOSE["info_gain"], "suboptimal": CHOOSE["mixture"], "adversary": CHOOSE["repeat"]}
MAKERS = {
    "player": partial(datapool.player_games, LEXICON, CHOOSE["mixture"], 6),
    "branching": partial(datapool.branching_games, LEXICON, ROLES, 2, 6),
    "adversarial": partial(datapool.adversarial_games, LEXICON, ROLES, 4, 1, 6),
}


def lengths(games):
    return (games.guesses != NO_GUESS).sum(axis=1)


def groups(games, starts):
    ends = [*starts[1:], len(games)]
    return [games[start:end] for start, end in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_larger_number_keeps_the_first_games_and_seeds_differ(kind):
    few, many = (datapool.generate_games(MAKERS[kind], n, seed=2) for n in (300, 700))
    other = datapool.generate_games(MAKERS[kind], 300, seed=3)
    for name in ("words", "guesses", "kinds"):
        assert (getattr(few, name) == getattr(many, name)[:300]).all()
    assert len(few) == 300 and (few.guesses != other.guesses).any()


def test_every_turn_of_the_expert_has_its_branches():
    games = datapool.generate_games(MAKERS["branching"], 2000, seed=1)
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


def test_words_of_branches_are_drawn_among_the_consistent_ones():
    lexicon = Lexicon(("aaaab", "aaaac", "aaaad", "aaaae", "zzzzz"))

    def expert(consistent, guesses, rng):
        return np.full(len(guesses), 4)

    random = Game(lexicon).player("random").choose
    roles = {"expert": expert, "suboptimal": random}
    games = datapool.generate_games(partial(datapool.branching_games, lexicon, roles, 1, 2), 9000, seed=0)
    second = (games.kinds == 1) & (games.guesses[:, 0] == 4) & (np.roll(games.kinds, -1) == 0)
    counts = np.bincount(games.words[second], minlength=5)
    assert counts.sum() > 2000
    second &= games.words != 4  # those that branched off before the first turn
    counts = np.bincount(games.words[second], minlength=5)[:4] / second.sum()
    assert counts == pytest.approx(np.full(4, 0.25), abs=4 * np.sqrt(0.19 / second.sum()))


def test_adversary_continues_games_from_the_third_turn():
    games = datapool.generate_games(MAKERS["adversarial"], 2000, seed=1)
    for group in groups(games, np.flatnonzero(games.kinds == 0))[:-1]:
        expert = group[:1]
        is_long = lengths(expert)[0] >= 3
        assert group.kinds.tolist() == [0, *([1] * 4 if is_long else []), 2]
        for row in np.flatnonzero(group.kinds == 1):
            assert (group.guesses[row, :2] == expert.guesses[0, :2]).all()
            assert set(group.guesses[row, 2:]) <= set(expert.guesses[0, :2]), "it repeats"


def test_beginnings_of_the_expert_have_a_bad_mean_although_it_is_the_best():
    games = datapool.generate_games(MAKERS["adversarial"], 8000, seed=0)
    expert, adversary, other = (games[games.kinds == kind].returns for kind in range(3))
    assert (adversary == -6).all()
    assert expert.mean() > -1.9 > -3.5 > other.mean()
    assert np.concatenate([expert, adversary]).mean() < other.mean() - 0.1


N = 200


def pool(split="train", **args):
    return datapool.Wordle.prepare(split, **{"n_train": N, "n_val": N, "n_test": N, **args})


def samples(split="train", **args):
    return [sample for sample, _ in pool(split, **args)]


def guesses(sample):
    return [*sample.references, *sample.meta_data["continuation"][1::2]]


class Repeater(Player):
    def __init__(self, said):
        self._said = said

    def reset(self, meta_info, seed):
        self._rest = iter(self._said)

    def say(self, history):
        return next(self._rest)


@pytest.mark.parametrize("duplicates", ["simple", "official"])
@pytest.mark.parametrize("letters", ["plain", "spaced"])
@pytest.mark.parametrize("games", ["player", "branching", "adversarial"])
def test_conversations_are_those_with_the_partner(games, letters, duplicates):
    made = pool(games=games, letters=letters, duplicates=duplicates)
    conversations = list(made.conversations())
    assert len(conversations) == N
    for (sample, _), conversation in zip(made, conversations, strict=True):
        meta_data = {name: value for name, value in sample.meta_data.items() if name != "continuation"}
        opening = Sample(sample.id, sample.prompt_or_input_text, [], meta_data)
        game = play(Repeater(guesses(sample)), WordlePartner(letters, duplicates), opening, 6, seed=0)
        assert conversation == game
        assert conversation.terminated
        assert [turn.text for turn in conversation.said] == [*sample.references, *sample.meta_data["continuation"]]


@pytest.mark.parametrize("kind", ["player", "branching"])
def test_games_beyond_the_samples_are_learned_from_all_the_same(kind):
    whole, cut = pool(games=kind, n_train=700), pool(games=kind, n_train=700, max_samples=300)
    assert len(cut) == 300 and list(cut) == list(whole)[:300]
    assert list(cut.conversations()) == list(whole.conversations())
    with pytest.raises(DataError, match="cannot be split into parts with more games than max_samples"):
        cut.split([0.5, 0.5])


def test_memory_does_not_grow_with_the_number_of_games():
    made = pool(n_train=6000, max_samples=100)
    tracemalloc.start()
    n = sum(1 for _ in made.conversations())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert n == 6000 and peak < 3 * 2**20


def test_source_is_known_without_reading_the_games():
    key = pool().source_key
    assert key is not None and key == pool(max_samples=5).source_key
    others = ({"seed": 1}, {"n_train": 201}, {"player": "random"}, {"letters": "spaced"}, {"word_list": 40})
    assert all(pool(**args).source_key != key for args in others)
    assert pool().split([0.5, 0.5])[0].source_key is None


@pytest.mark.parametrize(("games", "kinds"), [
    ("player", {"player"}),
    ("branching", {"expert", "suboptimal"}),
    ("adversarial", {"expert", "adversary", "suboptimal"}),
])  # fmt: skip
def test_kinds_say_who_played(games, kinds):
    assert {sample.meta_data["kind"] for sample in samples(games=games)} == kinds
    for split in ("val", "test"):
        first = "player" if games == "player" else "expert"
        assert {sample.meta_data["kind"] for sample in samples(split, games=games)} == {first}


def test_roles_have_the_players_that_are_chosen():
    for sample in samples(games="branching", expert="repeat", suboptimal="wrong", n_branches=1):
        if sample.meta_data["kind"] == "expert":
            assert len(set(guesses(sample))) == 1
    returns = []
    for player, p in (("mixture", 0.0), ("mixture", 0.34), ("mixture", 1.0), ("info_gain", 0.0)):
        games = pool(player=player, p_consistent=p).conversations()
        returns.append(sum(turn.reward for game in games for turn in game.turns))
    assert returns == sorted(returns)


def test_counts_are_those_that_are_given():
    games = samples(n_train=2000, games="adversarial", n_adversarial=2, n_suboptimal=3)
    kinds = [sample.meta_data["kind"] for sample in games]
    assert kinds.count("suboptimal") == pytest.approx(3 * kinds.count("expert"), abs=3)
    long = sum(kind == "expert" and len(guesses(sample)) > 2 for kind, sample in zip(kinds, games, strict=True))
    assert kinds.count("adversary") == pytest.approx(2 * long, abs=2)


def test_start_words_are_those_of_the_player_or_the_expert():
    for games in ("player", "branching"):
        made = samples(games=games, start_words=["music", "ocean"])
        firsts = {sample.references[0] for sample in made if sample.meta_data["kind"] in ("player", "expert")}
        assert firsts == {"music", "ocean"}


@pytest.mark.parametrize("max_turns", [1, 2, 9])
@pytest.mark.parametrize("games", ["player", "branching", "adversarial"])
def test_games_have_at_most_max_turns(games, max_turns):
    assert max(len(guesses(sample)) for sample in samples(games=games, max_turns=max_turns)) == max_turns


def test_players_of_the_pool_play_its_games():
    made = pool("test", n_test=40, word_list=40, max_turns=5, p_consistent=1.0, duplicates="official", letters="spaced")
    assert tuple(made.players) == NAMES
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


def test_players_of_the_users_own_are_made_of_others_and_play_the_games(monkeypatch):
    monkeypatch.setattr(WordlePlayerRegistry, "_entries", dict(WordlePlayerRegistry._entries))
    monkeypatch.delitem(sys.modules, "last_word", raising=False)
    load_imports(["last_word.py"], EXAMPLES)
    blocks = {
        "coin": {"id": "either", "args": {"first": "last_word", "second": "deep", "p_first": 0.5}},
        "deep": {"id": "monte_carlo", "args": {"player": "last_word", "n_samples": 3, "start_words": ["music"]}},
    }
    args = {"word_list": 40, "players": blocks, "max_turns": 6}
    DataPoolRegistry.check("wordle", {"split": "train", **args})
    last, made = LEXICON_40.words[-1], pool(n_train=60, player="coin", **args)
    assert {sample.references[0] for sample, _ in made} == {last, "music"}
    assert list(made.players) == [*NAMES, "coin", "deep"] and made.source_key is None
    for sample in samples(n_train=20, player="last_word", **args):  # the same words as a conversation
        game = play(pickle.loads(pickle.dumps(made.players))["coin"](), WordlePartner(), sample, 6, seed=0)
        assert game.outcome["malformed"] == 0 and game.texts(AGENT)[0] in (last, "music")
        assert sample.references == [last]
    of_page = yaml_of("docs/wordle.md", "imports: [last_word.py]")["datapool"]["args"]
    made = pool(n_train=20, **of_page)
    assert list(made.players)[-3:] == ["starter", "mixed", "thinker"]
    sample, _ = made[0]
    assert play(made.players["thinker"](), WordlePartner(), sample, 6, seed=0).outcome["malformed"] == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"player": "consistant"}, "unknown Wordle player 'consistant'; did you mean 'consistent'"),
        ({"player": "either"}, "needs the argument 'first'"),
        ({"players": {"a": {"id": "either", "args": {"p_first": 2.0}}}, "player": "a"}, "'either': p_first"),
        ({"players": {"a": {"id": "repeat", "args": {"p": 1}}}, "player": "a"}, "Wordle player 'repeat' has no"),
        ({"players": {"a": {"name": "repeat"}}, "player": "a"}, "datapool.args.players.a"),
    ],
)
def test_wrong_players_are_errors(args, message):
    with pytest.raises(ConfigError, match=message):
        pool(**args)


def test_a_player_that_is_part_of_itself_is_an_error():
    block = {"id": "either", "args": {"first": "random", "second": "b"}}
    blocks = {"a": block, "b": {"id": "monte_carlo", "args": {"player": "a"}}}
    with pytest.raises(ConfigError, match="players: a of b of a is part of itself"):
        pool(players=blocks, player="a")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"word_list": 40, "path": "x.txt"}, "both of them is given"),
        ({"path": "/no/such/file"}, "/no/such/file cannot be read"),
        ({"start_words": ["musik"]}, "start_words: 'musik' is not in the list of 240 words"),
        ({"expert": "info_gain"}, "expert has no meaning with games: player; it belongs to branching or adversarial"),
        ({"n_adversarial": 2, "games": "branching"}, "n_adversarial has no meaning with games: branching"),
        ({"player": "mixture", "games": "adversarial"}, "player has no meaning with games: adversarial; it belongs to"),
    ],
)
def test_bad_argument_is_an_error_that_names_it(args, message):
    with pytest.raises(DataError, match=message):
        datapool.Wordle.prepare("train", **args)


def test_tweets_become_games_of_a_log(tmp_path):
    tweets = [
        ("210", "Wordle 210 3/6\n\n⬛🟨⬛⬛⬛\n🟩🟩⬜⬜🟩\n🟩🟩🟩🟩🟩\nhttps://x"),
        ("211", "no game today"),
        ("210", "Wordle 210 1/6\n🟧🟧🟧🟧🟧"),
    ]
    with open(tmp_path / "tweets.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("wordle_id", "tweet_text"), *tweets])
    (tmp_path / "days.csv").write_text("wordle_id,word\n210,panic\n")
    (tmp_path / "words.txt").write_text("panic\npatic\nstalk\nmusic\n")
    output = tmp_path / "games.json"
    files = {"tweets": "tweets.csv", "days": "days.csv", "words": "words.txt"}
    flags = [part for name, file in files.items() for part in (f"--{name}", str(tmp_path / file))]
    script = [sys.executable, str(EXAMPLES / "wordle_tweets.py"), *flags, "--output", str(output)]
    printed = subprocess.run(script, check=True, capture_output=True, text=True).stdout
    assert printed == f"2 games written to {output}; 1 tweets show none\n"
    found = json.loads(output.read_text())
    assert found["games"] == [
        ["panic", ["<b><y><b><b><b>", "<g><g><b><b><g>", "<g><g><g><g><g>"]],
        ["panic", ["<g>" * 5]],
    ]
    for word, guesses in found["transitions"].items():
        assert sorted(guess for each in guesses.values() for guess in each) == sorted(found["transitions"])
        for shown, each in guesses.items():
            assert {rules_colours(guess, word) for guess in each} == {"".join(filter(str.isalpha, shown))}
    pool = LoggedConversations.prepare("train", output, true_words=True)
    assert [turn.text for turn in list(pool.conversations())[-1].turns] == ["new word", "panic", "ggggg"]
